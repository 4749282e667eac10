// SPDX-License-Identifier: GPL-2.0-only
/* The tests of mymem, for mymem_rust. */
#include "mymem_rust.h"

#define DEVICE "mymem_rust"
#define device_read mymem_rust_read
#define device_write mymem_rust_write
#define device_fetch_add mymem_rust_fetch_add

#include "../mymem/device-test.c"
