// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program; all its code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    memwarden::main()
}
