// SPDX-License-Identifier: MIT OR Apache-2.0
//! The module's client against a saved tree: no kernel needed.

use std::fs;

use memwarden_guard::budget::{Request, Unit};
use memwarden_guard::{BestEffort, Error, Module, ModuleSource, Regulator, Resource, StartOptions};
use memwarden_platform::Root;

const CONTROL: &str = "maxbw: 1200\nperiod_us: 1000\nreclaim: 0\nexclusive: 0\nqmin: 10\nevent: page-faults 0x2\n\
    write_event: none\nbytes_per_event: 4096\nuser_only: 0\nidle: wait\ncpus: 0-1\nrt: none\nactive: none\nthrottled: none\nonline: 0-1\n\
    guaranteed_mb: 1100\n";
const LIMIT: &str = "cpu  |budget (MB/s,pct,weight)\n-------------------------------\n\
    CPU0: 256 (1000MB/s, 83 pct, w0)\nCPU1: max\n";

struct Tree {
    _folder: tempfile::TempDir,
    root: Root,
}

impl Tree {
    fn empty() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        Self {
            _folder: folder,
            root,
        }
    }

    fn loaded() -> Self {
        let tree = Self::empty();
        fs::create_dir_all(tree.root.path("/sys/module/memguard")).unwrap();
        tree
    }

    fn running() -> Self {
        let tree = Self::loaded();
        fs::create_dir_all(tree.root.path("/dev/memguard")).unwrap();
        tree.put("control", CONTROL);
        tree.put("limit", LIMIT);
        tree.put("stats", "{\"cpu\":0,\"periods\":5,\"read\":{\"used\":9}}\n");
        tree
    }

    fn put(&self, file: &str, text: &str) {
        fs::write(self.root.path(&format!("/dev/memguard/{file}")), text).unwrap();
    }

    fn get(&self, file: &str) -> String {
        fs::read_to_string(self.root.path(&format!("/dev/memguard/{file}"))).unwrap()
    }

    fn module(&self) -> Module {
        Module::under(self.root.clone(), ModuleSource::Installed)
    }
}

#[test]
fn settings_and_statistics_are_read() {
    let module = Tree::running().module();
    // The tree is gone with its folder: everything says so.
    assert!(matches!(module.settings(), Err(Error::NotRunning)));

    let tree = Tree::running();
    let settings = tree.module().settings().unwrap();
    assert_eq!(settings.control.event, "page-faults");
    assert_eq!(settings.read_budget_events[&0], Some(256));
    assert_eq!(settings.read_budget_events[&1], None);
    assert!(settings.write_budget_events.is_empty());
    assert_eq!(tree.module().statistics().unwrap()[0].read.used, 9);
}

#[test]
fn what_is_set_is_written_in_the_modules_own_words() {
    let tree = Tree::running();
    let mut module = tree.module();
    module
        .set_budgets(
            Resource::Read,
            &Request::parse(Unit::Mb, "1000,100").unwrap(),
        )
        .unwrap();
    assert_eq!(tree.get("limit"), "mb 1000 100\n");
    module
        .set_mode(Some(BestEffort::Proportional), None)
        .unwrap();
    assert_eq!(tree.get("control"), "exclusive 5\n");
    module.set_mode(None, Some(true)).unwrap();
    assert_eq!(tree.get("control"), "reclaim 1\n");
    module.set_maxbw(1200).unwrap();
    assert_eq!(tree.get("control"), "maxbw 1200\n");
    module.set_rt(1, true).unwrap();
    assert_eq!(tree.get("control"), "rt 1 1\n");
    module.reset_statistics().unwrap();
    assert_eq!(tree.get("control"), "reset\n");
}

#[test]
fn missing_pieces_are_named_with_their_remedy() {
    let check = |tree: &Tree, words: &[&str]| {
        let message = tree
            .module()
            .start(&StartOptions::default())
            .unwrap_err()
            .to_string();
        for word in words {
            assert!(message.contains(word), "{word}: {message}");
        }
    };
    check(
        &Tree::empty(),
        &[
            "no memguard module for kernel",
            "updates/dkms",
            "--module PATH",
        ],
    );
    check(
        &Tree::loaded(),
        &["memguard is loaded, but", "devtmpfs on /dev"],
    );
    check(
        &Tree::running(),
        &[
            "running already",
            "page-faults",
            "1000 us",
            "memwarden guard stop",
        ],
    );
}

#[test]
fn a_module_is_found_where_distributions_put_it() {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    for file in [
        "extra/memguard.ko",
        "updates/dkms/memguard.ko.xz",
        "updates/memguard.ko.zst",
        "updates/dkms/memguard.ko.gz",
    ] {
        let tree = Tree::empty();
        let path = tree.root.path(&format!("/lib/modules/{release}/{file}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(tree.module().find().unwrap(), path);
    }
    let module = Module::under(
        Root::system(),
        ModuleSource::Path("/nonexistent/memguard.ko".into()),
    );
    assert!(
        module
            .find()
            .unwrap_err()
            .to_string()
            .contains("/nonexistent/memguard.ko")
    );
}

#[test]
fn a_file_that_is_no_module_is_refused_in_words() {
    let tree = Tree::empty();
    let path = tree.root.path("/not-a-module.ko");
    fs::write(&path, "text").unwrap();
    let mut module = Module::under(tree.root.clone(), ModuleSource::Path(path));
    let message = module
        .start(&StartOptions::default())
        .unwrap_err()
        .to_string();
    let expected = [
        "not built for this kernel",
        "needs root",
        "loads no modules",
        "signed modules",
    ];
    assert!(
        expected.iter().any(|words| message.contains(words)),
        "{message}"
    );
}
