/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is known about the drivers whose channels cftu takes, and a client cannot find out:
 * whether they report errors, and whether a terminate stops the hardware.
 */
#ifndef CFTU_PROVIDER_H
#define CFTU_PROVIDER_H

#include <linux/types.h>

/**
 * struct provider - a driver
 * @driver: name
 * @reports: each descriptor that the hardware failed is called back with its error
 * @stops: after a terminate and a synchronize the hardware touches no memory
 */
struct provider {
	const char *driver;
	bool reports;
	bool stops;
};

/* A driver that is not on the list is taken to do neither. */
const struct provider *cftu_provider_of(const char *driver);

#endif /* CFTU_PROVIDER_H */
