// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run folder survives a round trip, and an invalid one is refused in one line.

use std::fs;
use std::path::Path;

use memwarden_run::statistics::ratio_of_medians;
use memwarden_run::{
    Aggressor, Cache, Case, Existing, Figure, GuardSettings, Host, LabFacts, Metric, Partial,
    Recorded, Run, RunFolder, Sample, Summary, check_place, schema,
};
use serde_json::{Value, json};

fn run() -> Run {
    let mut run = Run::new("interfere", "lab");
    run.configuration.insert("repeat".into(), json!(5));
    run.configuration.insert("cpus".into(), json!("1-3"));
    run.host = Host {
        cpu_model: Some("Cortex-A53".into()),
        cores: Some(4),
        caches: vec![Cache {
            level: 2,
            kind: "unified".into(),
            size_bytes: Some(524_288),
            line_bytes: Some(64),
            ways: Some(16),
            cpus: Some("0-3".into()),
        }],
        counters: vec!["page-faults".into()],
        ..Host::default()
    };
    run.lab = Some(LabFacts {
        kernel: "6.12".into(),
        machine: "virt".into(),
        qemu_version: "7.2".into(),
        clock: "counted".into(),
        ..LabFacts::default()
    });
    run
}

fn summary() -> Summary {
    let solo = [100.0, 101.0, 99.5];
    let beside = [390.0, 395.5, 391.25];
    let mut summary: Summary = Summary::new("interfere", "lab");
    summary
        .cases
        .push(Case::new("solo").with_metric("victim", Metric::from_samples("latency_ns", &solo)));
    let mut case = Case::new("bandwidth:write x1, guard 1000,max")
        .with("zeta", "first figure, last letter")
        .with_metric("victim", Metric::from_samples("latency_ns", &beside))
        .with("alpha", json!({"nested": [1, 2.5, null]}))
        .with_metric(
            "unheard",
            Metric::unmeasured("stalls", "not supported by this machine's PMU"),
        );
    case.set_slowdown(ratio_of_medians(&beside, &solo));
    case.guard = Some(GuardSettings {
        backend: "module".into(),
        budget_mib_s: vec![Some(1000.0), None],
        best_effort: "none".into(),
        reclaim: false,
        period_us: Some(1000),
        ..GuardSettings::default()
    });
    case.aggressors.push(Aggressor {
        cpu: 1,
        kind: "bandwidth:write".into(),
        mib_s: Some(99.99),
        throttled_share: Some(0.6),
        ..Aggressor::default()
    });
    summary.cases.push(case);
    summary.note("What an emulator shows.");
    summary.note("What an emulator shows.");
    summary
}

fn samples() -> Vec<Sample> {
    vec![
        Sample::new("solo", 0, "victim", "latency_ns", "ns", 1.0 / 3.0)
            .on_cpu(0)
            .at_ns(u64::MAX),
        Sample::new(
            "a \"quoted\", case\nof two lines",
            1,
            "aggressor",
            "mib_s",
            "MiB/s",
            None,
        ),
    ]
}

fn write(directory: &Path) {
    let mut folder = RunFolder::create(Some(directory), run(), Existing::Refuse).unwrap();
    folder.append_all(&samples()).unwrap();
    assert!(
        !directory.exists(),
        "the folder has its name before it is complete"
    );
    assert_eq!(folder.finish(&summary()).unwrap(), directory);
}

#[test]
fn a_folder_comes_back_as_written() {
    let temp = tempfile::tempdir().unwrap();
    let directory = temp.path().join("deep/inside/run");
    write(&directory);
    assert!(!directory.with_file_name("run.partial").exists());
    let recorded = Recorded::read(&directory).unwrap();
    assert_eq!(recorded.summary, summary());
    assert_eq!(recorded.samples, samples());
    assert_eq!(recorded.run.configuration, run().configuration);
    assert_eq!(recorded.run.lab, run().lab);
    assert_eq!(recorded.run.host, run().host);
    assert!(recorded.run.ended.unwrap() >= recorded.run.started);
    assert_eq!(recorded.summary.notes.len(), 1);
    let keys: Vec<_> = recorded.summary.cases[1]
        .figures
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(keys, ["zeta", "victim", "alpha", "unheard"]);
    assert!(matches!(
        recorded.summary.cases[1].figures["alpha"],
        Figure::Other(_)
    ));
}

#[test]
fn an_existing_folder_is_replaced_only_when_asked_and_only_if_it_is_one() {
    let temp = tempfile::tempdir().unwrap();
    let directory = temp.path().join("run");
    write(&directory);
    let error = RunFolder::create(Some(&directory), run(), Existing::Refuse)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.ends_with("run exists already: choose another --out, or --replace it"),
        "{error}"
    );
    fs::write(directory.join("old"), "").unwrap();
    let mut folder = RunFolder::create(Some(&directory), run(), Existing::Replace).unwrap();
    assert!(
        directory.join("old").exists(),
        "the old run is gone before the new one is complete"
    );
    folder.append_all(&samples()).unwrap();
    folder.finish(&summary()).unwrap();
    assert!(!directory.join("old").exists());

    let home = temp.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("thesis.tex"), "").unwrap();
    let error = RunFolder::create(Some(&home), run(), Existing::Replace)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("is not a run folder"), "{error}");
    assert!(home.join("thesis.tex").exists());
    for bad in ["/", "..", "a/.."] {
        let error = RunFolder::create(Some(Path::new(bad)), run(), Existing::Replace)
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("cannot be a run folder"), "{bad}: {error}");
    }
}

#[test]
fn an_interrupted_run_leaves_its_samples() {
    let temp = tempfile::tempdir().unwrap();
    let directory = temp.path().join("run");
    let mut folder = RunFolder::create(Some(&directory), run(), Existing::Refuse).unwrap();
    folder.append(&samples()[0]).unwrap();
    drop(folder);
    assert!(!directory.exists());
    let partial = temp.path().join("run.partial");
    assert!(
        fs::read_to_string(partial.join("samples.csv"))
            .unwrap()
            .contains("latency_ns,ns,0.333")
    );
    let error = Recorded::read(&partial).unwrap_err().to_string();
    assert!(
        error.ends_with("run.partial has no summary.json: the run was interrupted before its end"),
        "{error}"
    );
    let error = RunFolder::create(Some(&directory), run(), Existing::Refuse)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("left from an interrupted run"), "{error}");
    let mut folder = RunFolder::create(Some(&directory), run(), Existing::Replace).unwrap();
    folder.append_all(&samples()).unwrap();
    folder.finish(&summary()).unwrap();
    // A run that measured nothing replaces nothing.
    let empty = RunFolder::create(Some(&directory), run(), Existing::Replace).unwrap();
    let error = empty.finish(&summary()).unwrap_err().to_string();
    assert!(error.ends_with("the run measured nothing"), "{error}");
    assert_eq!(Recorded::read(&directory).unwrap().samples, samples());
    assert!(!partial.exists());
}

#[test]
fn an_adopted_run_takes_its_new_record_and_all_its_files() {
    let temp = tempfile::tempdir().unwrap();
    let (guest, host) = (temp.path().join("guest"), temp.path().join("host"));
    write(&guest);
    fs::create_dir(guest.join("plots")).unwrap();
    fs::write(guest.join("plots/a.svg"), "<svg/>").unwrap();
    let mut recorded = Recorded::read(&guest).unwrap();
    recorded.run.target = "sim:xeon-w3530".into();
    assert_eq!(recorded.adopt(Some(&host), Existing::Refuse).unwrap(), host);
    assert!(!guest.exists());
    assert!(host.join("plots/a.svg").exists());
    assert_eq!(Recorded::read(&host).unwrap().run.target, "sim:xeon-w3530");
}

#[test]
fn a_value_that_is_not_finite_is_never_written() {
    let temp = tempfile::tempdir().unwrap();
    let mut folder =
        RunFolder::create(Some(&temp.path().join("run")), run(), Existing::Refuse).unwrap();
    for bad in [f64::NAN, f64::INFINITY] {
        let error = folder
            .append(&Sample::new("solo", 0, "victim", "latency_ns", "ns", bad))
            .unwrap_err()
            .to_string();
        assert!(
            error.ends_with("latency_ns of case solo is not a finite number"),
            "{error}"
        );
    }
    let case = Case::new("solo")
        .with("ratio", f64::NAN)
        .with_metric("victim", Metric::from_samples("x", &[f64::NAN]));
    let text = serde_json::to_string(&Case {
        slowdown: Some(f64::INFINITY),
        ..case
    })
    .unwrap();
    assert!(
        text.contains(r#""ratio":null"#) && text.contains(r#""slowdown":null"#),
        "{text}"
    );
    assert!(
        text.contains("none of the 1 samples is a finite number"),
        "{text}"
    );
}

#[test]
fn bad_folders_are_refused_in_one_line() {
    let temp = tempfile::tempdir().unwrap();
    let directory = temp.path().join("run");
    write(&directory);
    let read_with = |file: &str, text: Option<&str>| {
        let path = directory.join(file);
        let good = fs::read_to_string(&path).unwrap();
        match text {
            Some(text) => fs::write(&path, text).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let error = Recorded::read(&directory).unwrap_err().to_string();
        fs::write(&path, good).unwrap();
        assert!(!error.contains('\n'), "{error}");
        error.replace(&format!("{}", directory.display()), "DIR")
    };
    assert_eq!(
        read_with("run.json", None),
        "DIR has no run.json: it is not a run folder"
    );
    assert_eq!(
        read_with("summary.json", None),
        "DIR has no summary.json: the run was interrupted before its end"
    );
    assert_eq!(
        read_with("samples.csv", None),
        "DIR has no samples.csv: the raw samples are gone"
    );
    assert_eq!(
        read_with("run.json", Some("{\"schema\": \"memwarden.run/2\"}")),
        "DIR/run.json: the schema is \"memwarden.run/2\", this version of memwarden reads \"memwarden.run/1\""
    );
    assert_eq!(
        read_with("summary.json", Some("{}")),
        "DIR/summary.json: the schema is missing, this version of memwarden reads \"memwarden.summary/1\""
    );
    assert_eq!(
        read_with("summary.json", Some("{\"schema\":\n  nonsense}")),
        "DIR/summary.json: line 2, column 4: expected ident"
    );
    assert_eq!(
        read_with(
            "run.json",
            Some("{\"schema\": \"memwarden.run/1\",\n \"experiment\": 7}")
        ),
        "DIR/run.json: line 2, column 16: invalid type: integer `7`, expected a string"
    );
    assert_eq!(
        read_with("samples.csv", Some("case,value\nsolo,1\n")),
        "DIR/samples.csv: line 1: the columns must begin with case,repeat,role,cpu,metric,unit,value,t_ns, \
         found case,value"
    );
    assert_eq!(
        read_with(
            "samples.csv",
            Some("case,repeat,role,cpu,metric,unit,value,t_ns\n")
        ),
        "DIR/samples.csv: no samples in it: the run measured nothing"
    );
    let error = Recorded::read(&directory.join("nowhere"))
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with("is not a folder: give the path of a run folder, such as out/demo"),
        "{error}"
    );
}

#[test]
fn what_is_written_follows_its_schema() {
    let faults = |schema: &str, value: &Value| {
        let schema: Value = serde_json::from_str(schema).unwrap();
        let mut faults = Vec::new();
        check(&schema, &schema, value, "", &mut faults);
        faults
    };
    let mut record = serde_json::to_value(run()).unwrap();
    let mut figures = serde_json::to_value(summary()).unwrap();
    assert_eq!(faults(schema::RUN_JSON, &record), [""; 0]);
    assert_eq!(faults(schema::SUMMARY_JSON, &figures), [""; 0]);
    record["host"]["cores"] = json!(0);
    record["schema"] = json!("memwarden.run/2");
    record["lab"].as_object_mut().unwrap().remove("clock");
    assert_eq!(
        faults(schema::RUN_JSON, &record),
        ["/schema: const", "/host/cores: minimum", "/lab: no clock"]
    );
    figures["cases"][0]["victim"]["median"] = json!("fast");
    figures["cases"][0]["victim"]["surprise"] = json!(1);
    figures["cases"][1]["guard"]["best_effort"] = json!("much");
    let found = faults(schema::SUMMARY_JSON, &figures);
    let expected = [
        "/cases/0/victim: surprise is unknown",
        "/cases/0/victim/median: type",
        "/cases/1/guard: anyOf",
    ];
    assert_eq!(found, expected);
}

/// Supports only the words of JSON Schema that our schemas use; an unknown word fails the test. (The `jsonschema` crate
/// agrees, but takes longer to compile than the rest of the project.)
fn check(root: &Value, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    for (word, rule) in schema.as_object().unwrap() {
        let mut fault = |good: bool| {
            if !good {
                faults.push(format!("{at}: {word}"))
            }
        };
        match word.as_str() {
            "$schema" | "$id" | "$defs" | "title" | "description" | "format" | "pattern" => {}
            "const" => fault(rule == value),
            "enum" => fault(rule.as_array().unwrap().contains(value)),
            "minimum" => fault(value.as_f64().is_none_or(|v| v >= rule.as_f64().unwrap())),
            "maximum" => fault(value.as_f64().is_none_or(|v| v <= rule.as_f64().unwrap())),
            "minLength" => fault(value.as_str().is_none_or(|v| !v.is_empty())),
            "minItems" | "maxItems" => fault(
                value
                    .as_array()
                    .is_none_or(|v| Some(v.len() as u64) == rule.as_u64()),
            ),
            "type" => {
                let kinds = rule
                    .as_array()
                    .cloned()
                    .unwrap_or_else(|| vec![rule.clone()]);
                fault(kinds.iter().any(|kind| match kind.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "number" => value.is_number(),
                    "integer" => value.is_u64(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    other => panic!("type {other}"),
                }));
            }
            "$ref" => {
                let target = rule.as_str().unwrap().strip_prefix('#').unwrap();
                check(root, root.pointer(target).unwrap(), value, at, faults);
            }
            "anyOf" => fault(rule.as_array().unwrap().iter().any(|one| {
                let mut inner = Vec::new();
                check(root, one, value, at, &mut inner);
                inner.is_empty()
            })),
            "required" => {
                for key in rule.as_array().unwrap().iter().map(|k| k.as_str().unwrap()) {
                    if value.as_object().is_some_and(|v| !v.contains_key(key)) {
                        faults.push(format!("{at}: no {key}"));
                    }
                }
            }
            "properties" => {
                for (key, rule) in rule.as_object().unwrap() {
                    if let Some(inner) = value.get(key) {
                        check(root, rule, inner, &format!("{at}/{key}"), faults);
                    }
                }
            }
            "additionalProperties" => {
                for key in value.as_object().into_iter().flat_map(|v| v.keys()) {
                    if schema["properties"].get(key).is_none() {
                        faults.push(format!("{at}: {key} is unknown"));
                    }
                }
            }
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, rule, item, &format!("{at}/{i}"), faults);
                }
            }
            other => panic!("{at}: the schema says {other}, which this test does not know"),
        }
    }
}

#[test]
fn an_incomplete_run_made_elsewhere_is_adopted() {
    let temp = tempfile::tempdir().unwrap();
    let guest = temp.path().join("guest");
    let partial = guest.with_extension("partial");
    // No folder, and a folder without samples: nothing to keep.
    assert_eq!(Partial::read(&partial).unwrap(), None);
    let mut folder = RunFolder::create(Some(&guest), run(), Existing::Refuse).unwrap();
    folder.flush().unwrap();
    assert_eq!(Partial::read(&partial).unwrap(), None);
    folder.append(&samples()[0]).unwrap();
    fs::write(partial.join("load.log"), "a word").unwrap();
    drop(folder);

    let mut left = Partial::read(&partial).unwrap().unwrap();
    assert_eq!(left.samples, samples()[..1]);
    left.run.target = "lab".into();
    let here = temp.path().join("here");
    let kept = left.adopt(Some(&here), Existing::Refuse).unwrap();
    assert_eq!(kept, temp.path().join("here.partial"));
    assert!(!here.exists());
    assert_eq!(Partial::read(&kept).unwrap().unwrap().run.target, "lab");
    assert_eq!(fs::read_to_string(kept.join("load.log")).unwrap(), "a word");
    // Its samples block the next run, as those of a run that was made here.
    let error = left.adopt(Some(&here), Existing::Refuse).unwrap_err();
    assert!(
        error.to_string().contains("left from an interrupted run"),
        "{error}"
    );
    left.adopt(Some(&here), Existing::Replace).unwrap();
}

#[test]
fn a_place_is_checked_as_a_run_would_and_left_as_it_is() {
    let temp = tempfile::tempdir().unwrap();
    let directory = temp.path().join("run");
    let partial = temp.path().join("run.partial");
    let verdict = |existing| check_place(Some(&directory), existing).is_ok();
    let both = || [Existing::Refuse, Existing::Replace].map(verdict);
    check_place(None, Existing::Refuse).unwrap();
    assert_eq!(both(), [true, true]);
    // A complete run.
    let create = || RunFolder::create(Some(&directory), run(), Existing::Replace).unwrap();
    let mut folder = create();
    folder.append_all(&samples()).unwrap();
    folder.finish(&summary()).unwrap();
    assert_eq!(both(), [false, true]);
    fs::remove_dir_all(&directory).unwrap();
    // An empty partial, one with a sample, and another folder.
    fs::create_dir(&partial).unwrap();
    assert_eq!(both(), [true, true]);
    let mut folder = create();
    folder.append(&samples()[0]).unwrap();
    drop(folder);
    assert_eq!(both(), [false, true]);
    fs::remove_file(partial.join("run.json")).unwrap();
    assert_eq!(both(), [false, false]);
    assert!(partial.join("samples.csv").exists());
}

#[test]
fn a_run_without_a_sample_blocks_no_other() {
    let temp = tempfile::tempdir().unwrap();
    let directory = temp.path().join("run");
    let partial = temp.path().join("run.partial");
    let create = || RunFolder::create(Some(&directory), Run::new("x", "native"), Existing::Refuse);
    // Dropped without samples: the folder is removed.
    drop(create().unwrap());
    assert!(!partial.exists());
    // Killed: at most the record and the column names remain.
    fs::create_dir(&partial).unwrap();
    let run = create().unwrap();
    // A running run keeps its folder.
    assert!(create().is_err());
    drop(run);
    fs::create_dir(&partial).unwrap();
    fs::write(partial.join("run.json"), "{").unwrap();
    fs::write(partial.join("samples.csv"), "case,repeat\n").unwrap();
    drop(create().unwrap());
    // A folder with a sample or another file is kept.
    for (name, text) in [("samples.csv", "case,repeat\na,1\n"), ("load.log", "")] {
        fs::create_dir(&partial).unwrap();
        fs::write(partial.join("run.json"), "{}").unwrap();
        fs::write(partial.join(name), text).unwrap();
        assert!(create().is_err(), "{name}");
        fs::remove_dir_all(&partial).unwrap();
    }
}

#[test]
fn the_folder_of_a_run_in_progress_is_not_replaced() {
    let temp = tempfile::tempdir().unwrap();
    let directory = temp.path().join("run");
    let partial = temp.path().join("run.partial");
    let elsewhere = temp.path().join("elsewhere");
    write(&elsewhere);
    let recorded = Recorded::read(&elsewhere).unwrap();
    let mut first = RunFolder::create(Some(&directory), run(), Existing::Replace).unwrap();
    first.append(&samples()[0]).unwrap();
    for existing in [Existing::Refuse, Existing::Replace] {
        let second = RunFolder::create(Some(&directory), run(), existing);
        for refused in [
            second.err(),
            check_place(Some(&directory), existing).err(),
            recorded.adopt(Some(&directory), existing).err(),
        ] {
            let message = refused.unwrap().to_string();
            assert!(
                message.contains("run.partial is written by a run in progress"),
                "{message}"
            );
        }
    }
    assert_eq!(first.finish(&summary()).unwrap(), directory);
    assert_eq!(Recorded::read(&directory).unwrap().samples.len(), 1);
    assert!(!partial.exists());
}

#[test]
fn a_run_whose_folder_was_taken_writes_nothing_into_it() {
    let temp = tempfile::tempdir().unwrap();
    let directory = temp.path().join("run");
    let partial = temp.path().join("run.partial");
    let create = || RunFolder::create(Some(&directory), run(), Existing::Refuse).unwrap();
    for finishes in [true, false] {
        let first = create();
        fs::remove_dir_all(&partial).unwrap();
        let mut second = create();
        second.append(&samples()[0]).unwrap();
        second.flush().unwrap();
        if finishes {
            let message = first.finish(&summary()).unwrap_err().to_string();
            assert!(
                message.contains("run.partial was removed or replaced during this run"),
                "{message}"
            );
        } else {
            drop(first);
        }
        assert!(!partial.join("summary.json").exists());
        second.finish(&summary()).unwrap();
        assert_eq!(Recorded::read(&directory).unwrap().samples.len(), 1);
        fs::remove_dir_all(&directory).unwrap();
    }
}
