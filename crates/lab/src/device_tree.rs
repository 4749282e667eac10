// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles a board's device tree from a source in lab/, as the kernel's build does: with the C preprocessor, then dtc.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{OnFile, Result};
use crate::program;

/// Compiles `source` for `cpus` CPUs to a file in `folder`, and returns its path.
pub(crate) fn compile(source: &Path, cpus: u32, folder: &Path) -> Result<PathBuf> {
    let attempted = format!("compile {}", source.display());
    let text = program::run(
        &attempted,
        program::command("gcc")
            .args(["-E", "-nostdinc", "-undef", "-x", "assembler-with-cpp"])
            .arg(format!("-DCPUS={cpus}"))
            .arg(source),
    )?;
    let expanded = folder.join("device-tree.dts");
    fs::write(&expanded, text.stdout).on("write", &expanded)?;
    let compiled = folder.join("device-tree.dtb");
    program::run(
        &attempted,
        program::command("dtc")
            .args(["-I", "dts", "-O", "dtb", "-o"])
            .arg(&compiled)
            .arg(&expanded),
    )?;
    Ok(compiled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::source::Source;

    /// The names of the nodes below one.
    fn nodes(tree: &Path, path: &str) -> Vec<String> {
        let said = program::run(
            "list nodes",
            program::command("fdtget").arg("-l").arg(tree).arg(path),
        )
        .unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        said.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_zcu102_has_the_cpus_that_were_asked_for_and_sixteen_channels() {
        let source = Source::find().unwrap().root().join("lab/zcu102.dts");
        let folder = tempfile::tempdir().unwrap();
        for cpus in 1..=4 {
            let tree = match compile(&source, cpus, folder.path()) {
                Err(Error::MissingProgram { program }) => {
                    eprintln!("skipped: {program} is not installed");
                    return;
                }
                compiled => compiled.unwrap(),
            };
            let names: Vec<String> = (0..cpus).map(|cpu| format!("cpu@{cpu}")).collect();
            assert_eq!(nodes(&tree, "/cpus"), names);
            let devices = nodes(&tree, "/devices@f0000000");
            let channels = devices.iter().filter(|name| name.starts_with("dma-"));
            assert_eq!(channels.count(), 16, "{devices:?}");
        }
    }

    #[test]
    fn an_error_names_the_source_and_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("bad.dts");
        fs::write(&source, "/dts-v1/;\n/ { x = <&y>; };\nz\n").unwrap();
        match compile(&source, 1, folder.path()) {
            Err(Error::MissingProgram { program }) => {
                eprintln!("skipped: {program} is not installed");
            }
            compiled => {
                let said = compiled.unwrap_err().to_string();
                assert!(said.contains("bad.dts:3"), "{said}");
            }
        }
    }
}
