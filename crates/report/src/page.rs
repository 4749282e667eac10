// SPDX-License-Identifier: MIT OR Apache-2.0
//! report.html: one self-contained file.

use std::fs::{self, File, Metadata, Permissions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use memwarden_run::{Recorded, Run};
use minijinja::{AutoEscape, Environment, Value, context};
use serde::Serialize;

use crate::compare::{compare_table, differences_table, json_text, side_by_side_table};
use crate::number::{bytes, counted, figure, printable};
use crate::plot::{
    Axis, Bar, BarChart, CHART_CSS, CI95, Chart, Colour, DARK, Group, LIGHT, Layout,
};
use crate::{Error, Figure, Table, figures, finding, notes, question, tables, title};

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");

/// Columns that an upright sheet of paper has room for. With a wider table, all tables are printed on sheets across, as
/// each change of orientation begins a new one.
const MOST_UPRIGHT: usize = 11;

fn any_wide(tables: &[Table]) -> bool {
    tables
        .iter()
        .any(|table| table.columns.len() > MOST_UPRIGHT)
}

/// A figure as the template sees it.
#[derive(Serialize)]
struct Shown {
    title: String,
    caption: String,
    file: String,
    wide: Value,
    narrow: Value,
}

/// A named fact.
#[derive(Serialize)]
struct Fact {
    name: &'static str,
    value: String,
}

/// Renders the report of a run in its folder: `report.html` and `plots/*.svg`. Returns the page's path.
///
/// # Errors
/// The folder cannot be written.
pub fn render(recorded: &Recorded) -> Result<PathBuf, Error> {
    let directory = &recorded.directory;
    let figures = figures(recorded);
    let plots = directory.join("plots");
    if !figures.is_empty() {
        fs::create_dir_all(&plots).map_err(|source| Error::Io {
            action: "create",
            path: plots.clone(),
            source,
        })?;
    }
    for figure in &figures {
        write(
            &plots.join(format!("{}.svg", figure.name)),
            &figure.chart.draw(Layout::Wide).standalone(),
        )?;
    }
    let page = page(recorded, &figures)?;
    let path = directory.join("report.html");
    write(&path, &page)?;
    Ok(path)
}

/// Renders several runs side by side into one page.
///
/// # Errors
/// The page cannot be written.
pub fn side_by_side(runs: &[Recorded], page: &Path) -> Result<(), Error> {
    let mut all = vec![differences_table(runs)];
    all.retain(|table| !table.rows.is_empty());
    all.push(side_by_side_table(runs));
    if let [first, second] = runs {
        all.push(compare_table(first, second));
    }
    let figures = beside_figures(runs);
    let facts: Vec<_> = runs
        .iter()
        .map(|r| Fact {
            name: "Run",
            value: format!("{}: {}", r.directory.display(), finding(&r.summary)),
        })
        .collect();
    let mut notes: Vec<String> = Vec::new();
    for note in runs.iter().flat_map(|r| notes::of(&r.run, &r.summary)) {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    let names = runs.iter().map(|run| run.directory.display().to_string());
    let names: Vec<_> = names.collect();
    let context = context! {
        title => title_of(runs),
        experiment => "comparison",
        facts, notes,
        statistics => glued(notes::STATISTICS),
        wide => any_wide(&all),
        most_upright => MOST_UPRIGHT,
        tables => all,
        figures => figures.iter().map(|f| show(f, "")).collect::<Vec<_>>(),
        command => command_line(&[vec!["memwarden".to_owned(), "report".into()], names].concat()),
        style => Value::from_safe_string(style()),
        version => env!("CARGO_PKG_VERSION"),
    };
    write(page, &fill(context)?)
}

/// The title of a comparison: `Interference, 2 runs side by side`.
fn title_of(runs: &[Recorded]) -> String {
    let beside = format!("{} side by side", counted(runs.len(), "run"));
    let experiment = runs.first().map(|run| run.run.experiment.as_str());
    match experiment.filter(|name| runs.iter().all(|run| run.run.experiment == *name)) {
        Some(name) => format!("{}: {beside}", title(name)),
        None => beside,
    }
}

/// Writes a file. If that fails, as on a full disk, the old one stays or is written back.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let old = fs::symlink_metadata(path).ok();
    let written = if old.as_ref().is_some_and(|old| !old.is_file()) || has_acl(path) {
        // A link, a pipe or a device, such as `--page /dev/stdout`: nothing takes its place. Nor has a new file the list
        // of users with rights of their own.
        overwrite(path, text)
    } else {
        match replace(path, text, old.as_ref()) {
            // A folder that takes no new file, or whose files only their owner may replace; or an owner that a new file
            // cannot get.
            Err(error) if old.is_some() && is_denied(&error) => overwrite(path, text),
            written => written,
        }
    };
    written.map_err(|source| Error::Io {
        action: "write",
        path: path.into(),
        source,
    })
}

fn has_acl(path: &Path) -> bool {
    rustix::fs::getxattr_query(path, c"system.posix_acl_access").is_ok_and(|bytes| bytes > 0)
}

fn is_denied(error: &io::Error) -> bool {
    // EACCES, EPERM; EROFS or EBUSY, where only the file itself is mounted to be written.
    matches!(
        error.kind(),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::ResourceBusy
    )
}

/// Writes a plain file beside its place, and renames it. It gets the owner, the group and the permissions of the old one.
fn replace(path: &Path, text: &str, old: Option<&Metadata>) -> io::Result<()> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    // As for any new file, the process's mask applies. In an old one's place it is private until it has that one's owner.
    let mode = if old.is_some() { 0o600 } else { 0o666 };
    let mut file = tempfile::Builder::new()
        .prefix(".memwarden-")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(parent.unwrap_or(Path::new(".")))?;
    if let Some(old) = old {
        let new = file.as_file().metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            // Other reasons have the same remedy: a user namespace refuses an owner that it doesn't know with EINVAL.
            fchown(file.as_file(), Some(old.uid()), Some(old.gid()))
                .map_err(|error| io::Error::new(ErrorKind::PermissionDenied, error))?;
        }
        // After the owner: a change of it clears the bits that set the user and the group.
        file.as_file().set_permissions(old.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

/// Writes into the file that is there. If that fails, it gets its old text back.
fn overwrite(path: &Path, text: &str) -> io::Result<()> {
    if !fs::metadata(path).is_ok_and(|to| to.is_file()) {
        // A pipe, a device, or a link to nothing: there is no old text.
        return fs::write(path, text);
    }
    // Not truncated: then the disk has room for the old text.
    let mut file = File::options().read(true).write(true).open(path)?;
    let mut old = Vec::new();
    file.read_to_end(&mut old)?;
    let Err(error) = fill_file(&mut file, text.as_bytes()) else {
        return Ok(());
    };
    fill_file(&mut file, &old).map_err(|lost| {
        let both = format!("{error}; its old text cannot be written back: {lost}");
        io::Error::new(error.kind(), both)
    })?;
    Err(error)
}

fn fill_file(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    file.rewind()?;
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)
}

fn page(recorded: &Recorded, figures: &[Figure]) -> Result<String, Error> {
    let (run, summary) = (&recorded.run, &recorded.summary);
    let all = tables(summary);
    let configuration: Vec<(String, String)> = run
        .configuration
        .iter()
        .map(|(k, v)| (k.clone(), json_text(v)))
        .collect();
    fill(context! {
        title => title(&run.experiment),
        experiment => run.experiment,
        target => run.target,
        finding => glued(&finding(summary)),
        question => question(&run.experiment),
        facts => facts(recorded),
        host => host(run),
        figures => figures.iter().map(|f| show(f, "plots/")).collect::<Vec<_>>(),
        wide => any_wide(&all),
        most_upright => MOST_UPRIGHT,
        tables => all,
        notes => notes::of(run, summary).iter().map(|note| glued(note)).collect::<Vec<_>>(),
        statistics => glued(notes::STATISTICS),
        command => command_line(&run.command_line),
        configuration,
        samples => figure(f64::from(u32::try_from(recorded.samples.len()).unwrap_or(u32::MAX))),
        style => Value::from_safe_string(style()),
        version => run.version,
    })
}

fn fill(context: Value) -> Result<String, Error> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    let template = environment.template_from_str(TEMPLATE);
    let page = template
        .and_then(|t| t.render(context))
        .map_err(|e| Error::Template(format!("{e:#}")))?;
    // Control characters are invalid in HTML and XML.
    Ok(printable(&page))
}

/// Keeps a percent sign on the line of its number.
fn glued(text: &str) -> String {
    text.replace(" %", "\u{a0}%")
}

fn style() -> String {
    let properties = |set: &[(&str, &str)]| {
        set.iter()
            .map(|(k, v)| format!("{k}:{v};"))
            .collect::<String>()
    };
    format!(
        "@media screen{{:root{{{light}}}}}@media print{{:root{{{light}}}}}\n\
         @media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n{CHART_CSS}{STYLE}",
        light = properties(&LIGHT),
        dark = properties(&DARK)
    )
}

fn show(figure: &Figure, folder: &str) -> Shown {
    let (title, quantity) = match &figure.chart {
        Chart::Bars(c) => (c.title.clone(), &c.axis.label),
        Chart::Xy(c) => (c.title.clone(), &c.y.label),
        Chart::Histogram(c) => (c.title.clone(), &c.axis.label),
    };
    if figure.chart.is_zero() {
        return Shown {
            title,
            caption: format!("{quantity}: every value is 0, so no chart is drawn."),
            file: String::new(),
            wide: Value::from_safe_string(String::new()),
            narrow: Value::from_safe_string(String::new()),
        };
    }
    Shown {
        title,
        caption: glued(&figure.caption),
        file: if folder.is_empty() {
            String::new()
        } else {
            format!("{folder}{}.svg", figure.name)
        },
        wide: Value::from_safe_string(figure.chart.draw(Layout::Wide).inline("wide")),
        narrow: Value::from_safe_string(figure.chart.draw(Layout::Narrow).inline("narrow")),
    }
}

/// How, where and when the run was made, for the head of the page.
fn facts(recorded: &Recorded) -> Vec<Fact> {
    let run = &recorded.run;
    let mut facts = Vec::new();
    let mut add =
        |name, value: Option<String>| facts.extend(value.map(|value| Fact { name, value }));
    add("Where", Some(target_text(run)));
    add("When", Some(when(run)));
    add("Machine", machine(run));
    let cases = counted(recorded.summary.cases.len(), "case");
    let samples = figure(recorded.samples.len() as f64);
    add("Measured", Some(format!("{cases}, {samples} raw samples")));
    let revision = run
        .git_revision
        .as_ref()
        .map_or_else(String::new, |r| format!(" ({r})"));
    add("By", Some(format!("memwarden {}{revision}", run.version)));
    facts
}

fn target_text(run: &Run) -> String {
    match (run.target.as_str(), &run.lab) {
        ("native", _) => "natively, on this machine".into(),
        ("lab", Some(lab)) => format!(
            "in the lab: QEMU {}, machine {}, Linux {}, {} clock",
            // As the emulator prints it.
            lab.qemu_version
                .trim_start_matches("QEMU emulator version "),
            lab.machine,
            lab.kernel,
            lab.clock
        ),
        ("lab", None) => "in the lab, an emulated machine".into(),
        (other, _) => match other.strip_prefix("sim:") {
            Some(platform) => format!("in the simulator, platform {platform}"),
            None => other.into(),
        },
    }
}

/// `2026-03-01 12:00:05 UTC, for 42 s`.
fn when(run: &Run) -> String {
    let day_and_time = |t: &str| t.get(..19).unwrap_or(t).replace('T', " ");
    let mut text = format!("{} UTC", day_and_time(&run.started));
    let parse = |t: &str| humantime::parse_rfc3339(t).ok();
    if let (Some(start), Some(end)) = (parse(&run.started), run.ended.as_deref().and_then(parse)) {
        if let Ok(took) = end.duration_since(start) {
            let took =
                std::time::Duration::from_millis(u64::try_from(took.as_millis()).unwrap_or(0));
            let seconds = std::time::Duration::from_secs(took.as_secs());
            let shown = if took.as_secs() >= 10 { seconds } else { took };
            text += &format!(", for {}", humantime::format_duration(shown));
        }
    } else if run.ended.is_none() {
        text += ", not completed";
    }
    text
}

fn machine(run: &Run) -> Option<String> {
    let host = &run.host;
    let mut parts = Vec::new();
    parts.extend(host.cpu_model.clone());
    parts.extend(host.cores.map(|n| counted(n as usize, "CPU")));
    parts.extend(host.memory_bytes.map(|b| format!("{} of memory", bytes(b))));
    parts.extend(
        host.kernel
            .as_ref()
            .filter(|_| run.lab.is_none())
            .map(|k| format!("Linux {k}")),
    );
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// All recorded facts of the machine.
fn host(run: &Run) -> Vec<(String, String)> {
    let host = &run.host;
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, value: Option<String>| {
        rows.push((name.into(), value.unwrap_or_else(|| "not known".into())));
    };
    add("CPU model", host.cpu_model.clone());
    add("architecture", host.architecture.clone());
    add("CPUs online", host.cores.map(|n| n.to_string()));
    let cache = |c: &memwarden_run::Cache| {
        let size = c.size_bytes.map_or_else(|| "size not known".into(), bytes);
        let shared = c
            .cpus
            .as_ref()
            .map_or_else(String::new, |s| format!(" (CPU {s})"));
        format!("L{} {} {size}{shared}", c.level, c.kind)
    };
    let caches: Vec<_> = host.caches.iter().map(cache).collect();
    add("caches", (!caches.is_empty()).then(|| caches.join(", ")));
    add("memory", host.memory_bytes.map(bytes));
    add("kernel", host.kernel.clone());
    add(
        "frequency governor",
        host.governor.clone().or_else(|| Some("none".into())),
    );
    add(
        "virtualised",
        host.virtualised
            .map(|v| if v { "yes" } else { "no" }.into()),
    );
    let list = |all: &[String]| {
        Some(if all.is_empty() {
            "none".into()
        } else {
            all.join(", ")
        })
    };
    add("counters", list(&host.counters));
    add("regulators", list(&host.regulators));
    for (name, value) in &host.more {
        add(&name.replace('_', " "), Some(json_text(value)));
    }
    if let Some(lab) = &run.lab {
        for (name, value) in &lab.more {
            add(
                &format!("lab: {}", name.replace('_', " ")),
                Some(json_text(value)),
            );
        }
    }
    rows
}

/// The command in a form that can be pasted into a shell; the program without its directory.
fn command_line(words: &[String]) -> String {
    let mut words = words.to_vec();
    if let Some(program) = words.first_mut() {
        if let Some(name) = Path::new(program.as_str()).file_name() {
            *program = name.to_string_lossy().into_owned();
        }
    }
    shell_words::join(words)
}

/// A chart for each metric of each key: one group for each case, one bar for each run.
fn beside_figures(runs: &[Recorded]) -> Vec<Figure> {
    let series: Vec<_> = runs
        .iter()
        .enumerate()
        .map(|(i, r)| (r.directory.display().to_string(), Colour::nth(i)))
        .collect();
    let mut keys: Vec<(&str, &str)> = Vec::new();
    for (key, metric) in runs
        .iter()
        .flat_map(|r| &r.summary.cases)
        .flat_map(|c| c.metrics())
    {
        let key = (key, metric.metric.as_str());
        if metric.median.is_some() && !keys.contains(&key) {
            keys.push(key);
        }
    }
    let mut figures = Vec::new();
    for (key, of) in keys {
        let mut groups: Vec<Group> = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        let (name, unit) = crate::number::name_and_unit(of);
        let axis = Axis::new(name, unit);
        for (i, run) in runs.iter().enumerate() {
            for case in &run.summary.cases {
                let Some(metric) = case.metric(key).filter(|m| m.metric == of) else {
                    continue;
                };
                let text = crate::number::optional(metric.median);
                let bar = Bar {
                    series: i,
                    value: metric.median,
                    interval: metric.median_ci95,
                    text,
                };
                match names.iter().position(|name| *name == case.name) {
                    Some(nth) => groups[nth].bars.push(bar),
                    None => {
                        names.push(&case.name);
                        groups.push(Group {
                            label: case.title(&run.summary.experiment),
                            bars: vec![bar],
                        });
                    }
                }
            }
        }
        let title = format!("Median {} in each run", axis.label);
        let chart = BarChart {
            title,
            axis,
            series: series.clone(),
            groups,
            whiskers: CI95,
            ..BarChart::default()
        };
        figures.push(Figure {
            name: crate::generic::file_name(key),
            caption: "Medians.".into(),
            chart: Chart::Bars(chart),
        });
    }
    figures
}
