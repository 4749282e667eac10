// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of kernel addresses, from /proc/kallsyms.

use std::fs::File;
use std::io::{BufRead, BufReader};

use crate::Root;

/// For each address its function with the offset: `vfs_read+0x1c [module]`. None if the kernel does not report
/// addresses (only root sees them), or the address is before the first function.
#[must_use]
pub fn of(root: &Root, addresses: &[u64]) -> Vec<Option<String>> {
    let mut found: Vec<Option<(u64, String)>> = vec![None; addresses.len()];
    let Ok(file) = File::open(root.path("/proc/kallsyms")) else {
        return vec![None; addresses.len()];
    };
    // Sorted by address, so that a line is compared with only a few of them.
    let mut order: Vec<usize> = (0..addresses.len()).collect();
    order.sort_by_key(|index| addresses[*index]);
    for line in BufReader::new(file).lines().map_while(Result::ok) {
        let Some((start, name)) = function(&line) else {
            continue;
        };
        let first = order.partition_point(|index| addresses[*index] < start);
        for index in &order[first..] {
            let best = &mut found[*index];
            // Later addresses have a nearer function already, or this is theirs, too.
            if best.as_ref().is_none_or(|(nearest, _)| *nearest < start) {
                *best = Some((start, name.to_owned()));
            }
        }
    }
    addresses
        .iter()
        .zip(found)
        .map(|(address, best)| best.map(|(start, name)| text(*address, start, &name)))
        .collect()
}

/// A line's function, if it has one: `ffffffff8144c110 T vfs_read`; a module's has `\t[name]` behind it.
fn function(line: &str) -> Option<(u64, &str)> {
    let (address, rest) = line.split_once(' ')?;
    let (kind, name) = rest.split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    (matches!(kind, "t" | "T" | "w" | "W") && address != 0).then_some((address, name))
}

fn text(address: u64, start: u64, name: &str) -> String {
    let offset = address - start;
    match name.split_once('\t') {
        Some((name, module)) => format!("{name}+{offset:#x} {module}"),
        None => format!("{name}+{offset:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(kallsyms: &str, addresses: &[u64]) -> Vec<Option<String>> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        std::fs::write(folder.path().join("proc/kallsyms"), kallsyms).unwrap();
        of(&Root::at(folder.path()), addresses)
    }

    #[test]
    fn an_address_is_in_the_function_before_it() {
        let text = "0000000000001000 T first\n\
                    0000000000003000 t third\n\
                    0000000000002000 W second\n\
                    0000000000002100 D data\n\
                    0000000000004000 t of_module\t[mymem]\n\
                    nonsense\n";
        let found = names(text, &[0x4010, 0x2fff, 0x1000, 0xfff, 0x3001]);
        let expected = [
            Some("of_module+0x10 [mymem]"),
            Some("second+0xfff"),
            Some("first+0x0"),
            None,
            Some("third+0x1"),
        ];
        assert_eq!(found, expected.map(|name| name.map(str::to_owned)));
    }

    #[test]
    fn addresses_that_are_hidden_name_nothing() {
        assert_eq!(names("0000000000000000 T first\n", &[0x1000]), [None]);
        let nowhere = Root::at("/nonexistent");
        assert_eq!(of(&nowhere, &[1, 2]), [None, None]);
    }
}
