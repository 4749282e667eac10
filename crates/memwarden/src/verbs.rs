// SPDX-License-Identifier: MIT OR Apache-2.0
//! One file a verb: its arguments, and the function that carries it out.
