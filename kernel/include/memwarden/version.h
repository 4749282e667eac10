/* SPDX-License-Identifier: GPL-2.0-only */
/* The version of all modules: that of the workspace in Cargo.toml, which a test compares. */
#ifndef _MEMWARDEN_VERSION_H
#define _MEMWARDEN_VERSION_H

#define MEMWARDEN_VERSION "0.1.0"

#endif
