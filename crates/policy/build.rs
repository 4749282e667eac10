// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles `policy/policy.c` for the library. For the tests alone it also compiles variants that stop before every
//! atomic access: the original, and copies with one fault each.

use std::path::{Path, PathBuf};
use std::{env, fs};

#[path = "tests/explore/mutants.rs"]
mod mutants;

fn main() {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let policy = here.join("../../policy");
    for watched in [
        "policy.c", "policy.h", "types.h", "events.c", "events.h", "split.c", "split.h",
    ] {
        println!("cargo::rerun-if-changed={}", policy.join(watched).display());
    }
    for watched in ["build.rs", "tests/c", "tests/explore/mutants.rs"] {
        println!("cargo::rerun-if-changed={watched}");
    }

    c_compiler(&policy)
        .file(policy.join("policy.c"))
        .file(policy.join("events.c"))
        .file(policy.join("split.c"))
        .compile("memwarden_policy");
    if env::var("TARGET") == env::var("HOST") {
        compile_for_tests(&here, &policy);
    }
}

fn c_compiler(policy: &Path) -> cc::Build {
    let mut build = cc::Build::new();
    build
        .include(policy)
        .std("gnu11")
        .warnings(true)
        .extra_warnings(true);
    build
}

/// Builds one archive with the layout of the structures and every variant of the policy; only this package's
/// integration tests link it.
fn compile_for_tests(here: &Path, policy: &Path) {
    let out = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it"));
    let c = here.join("tests/c");
    let source = fs::read_to_string(policy.join("policy.c")).expect("policy.c is readable");

    let whole = [mutants::Mutant {
        name: "whole",
        what: "",
        edits: &[],
    }];
    let mut objects = Vec::new();
    for mutant in whole.iter().chain(mutants::MUTANTS) {
        let mut text = source.clone();
        for (from, to) in mutant.edits {
            assert_eq!(
                text.matches(from).count(),
                1,
                "mutant {}: policy.c has to hold this exactly once: {from}",
                mutant.name
            );
            text = text.replace(from, to);
        }
        let mutated = out.join(format!("{}.inc.c", mutant.name));
        fs::write(&mutated, text).expect("OUT_DIR is writable");
        let variant = out.join(format!("variant_{}.c", mutant.name));
        fs::write(
            &variant,
            format!(
                "#define MW_VARIANT {}\n#define MW_SOURCE \"{}\"\n#include \"{}\"\n",
                mutant.name,
                mutated.display(),
                c.join("variant.c").display()
            ),
        )
        .expect("OUT_DIR is writable");
        objects.push(variant);
    }

    c_compiler(policy)
        .define("MW_EXPLORE", None)
        .opt_level(2)
        // The library's build has shown all warnings; the faulty copies cause more.
        .warnings(false)
        .extra_warnings(false)
        .file(c.join("layout.c"))
        .file(c.join("explore.c"))
        .files(objects)
        .cargo_metadata(false)
        .compile("memwarden_policy_explore");
    println!(
        "cargo::rustc-link-arg-tests={}",
        out.join("libmemwarden_policy_explore.a").display()
    );
}
