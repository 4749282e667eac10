/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is known about the drivers whose channels cftu takes, and what a client can't see
 * from outside: whether they tell of errors, and whether they stop when told to.
 */
#ifndef CFTU_PROVIDER_H
#define CFTU_PROVIDER_H

#include <linux/types.h>

/**
 * struct provider - a driver
 * @driver: its name
 * @reports: each descriptor that the hardware failed is called back with its error
 * @stops: after a terminate and a synchronize the hardware touches no memory
 */
struct provider {
	const char *driver;
	bool reports;
	bool stops;
};

/* Neither is known of a driver that is not on the list. */
const struct provider *provider_of(const char *driver);

#endif /* CFTU_PROVIDER_H */
