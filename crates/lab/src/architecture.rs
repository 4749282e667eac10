// SPDX-License-Identifier: MIT OR Apache-2.0
//! Architectures of emulated machines, and their names in Debian, a kernel's tree, Rust's targets, and QEMU.

use std::fmt;

/// An architecture that a guest may have, and that this machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// 64-bit Arm.
    Arm64,
    /// 64-bit x86.
    Amd64,
}

impl Architecture {
    /// Both; most machines have the first one.
    pub const ALL: [Self; 2] = [Self::Arm64, Self::Amd64];

    /// This machine's.
    pub(crate) const HOST: Self = if cfg!(target_arch = "aarch64") {
        Self::Arm64
    } else {
        Self::Amd64
    };

    /// Debian's name.
    #[must_use]
    pub fn debian(self) -> &'static str {
        match self {
            Self::Arm64 => "arm64",
            Self::Amd64 => "amd64",
        }
    }

    /// The bootable image in a kernel's build tree.
    pub(crate) fn image(self) -> &'static str {
        match self {
            Self::Arm64 => "arch/arm64/boot/Image",
            Self::Amd64 => "arch/x86/boot/bzImage",
        }
    }

    /// The make target of that image.
    pub(crate) fn image_target(self) -> &'static str {
        match self {
            Self::Arm64 => "Image",
            Self::Amd64 => "bzImage",
        }
    }

    /// The target that the guest's programs are compiled for.
    pub(crate) fn rust_target(self) -> &'static str {
        match self {
            Self::Arm64 => "aarch64-unknown-linux-gnu",
            Self::Amd64 => "x86_64-unknown-linux-gnu",
        }
    }

    /// GNU's name, with which the compilers' names and the folders of libraries begin.
    pub(crate) fn gnu(self) -> &'static str {
        match self {
            Self::Arm64 => "aarch64-linux-gnu",
            Self::Amd64 => "x86_64-linux-gnu",
        }
    }

    /// The loader of the C library, in the folder of libraries.
    pub(crate) fn loader(self) -> &'static str {
        match self {
            Self::Arm64 => "ld-linux-aarch64.so.1",
            Self::Amd64 => "ld-linux-x86-64.so.2",
        }
    }

    /// The program that strips the guest's programs.
    pub(crate) fn strip(self) -> String {
        if self == Self::HOST {
            "strip".to_owned()
        } else {
            format!("{}-strip", self.gnu())
        }
    }

    /// The emulator.
    pub(crate) fn qemu(self) -> &'static str {
        match self {
            Self::Arm64 => "qemu-system-aarch64",
            Self::Amd64 => "qemu-system-x86_64",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.debian())
    }
}
