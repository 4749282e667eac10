// SPDX-License-Identifier: MIT OR Apache-2.0
//! For tests: compares the requests of our kernel modules with what the C compiler makes of their headers.

use std::path::Path;
use std::process::Command;

/// C expressions, each with its value in Rust.
pub type Values = Vec<(String, u64)>;

/// A struct's size and the offsets of its fields, which have the same names in C.
macro_rules! layout {
    ($c:literal, $rust:ty, $($field:ident),+) => {{
        let mut values = vec![(format!("sizeof(struct {})", $c), size_of::<$rust>() as u64)];
        $(values.push((
            format!("offsetof(struct {}, {})", $c, stringify!($field)),
            std::mem::offset_of!($rust, $field) as u64,
        ));)+
        values
    }};
}
pub(crate) use layout;

/// Constants, by their names in C.
macro_rules! constants {
    ($($c:ident = $rust:expr),+ $(,)?) => {
        vec![$((stringify!($c).to_owned(), $rust as u64)),+]
    };
}
pub(crate) use constants;

/// Compiles and runs a C program that prints the expressions' values, and compares them.
///
/// # Panics
/// If a value differs, or the program does not compile.
pub fn compare(header: &str, values: &[Values]) {
    let uapi = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernel/include/uapi");
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("values.c"), folder.path().join("values"));
    let values: Vec<_> = values.concat();
    let lines = values.iter().map(|(expression, _)| {
        format!("\tprintf(\"%llu\\n\", (unsigned long long)({expression}));\n")
    });
    let lines: String = lines.collect();
    let text = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include <memwarden/{header}>\n\nint main(void)\n{{\n{lines}}}\n"
    );
    std::fs::write(&source, text).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(compiler)
        .arg("-I")
        .args([&uapi, &source])
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(status.success(), "{header} does not compile");
    let output = Command::new(&program).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let in_c: Vec<u64> = output.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(in_c.len(), values.len());
    for ((expression, in_rust), in_c) in values.iter().zip(in_c) {
        assert_eq!(*in_rust, in_c, "{expression}");
    }
}
