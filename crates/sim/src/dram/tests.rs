// SPDX-License-Identifier: MIT OR Apache-2.0

mod files;
mod golden;
mod rules;
mod runs;
