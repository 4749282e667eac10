// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pages of `guard serve`.

use std::time::SystemTime;

use hyper::StatusCode;
use memwarden_guard::metrics::{self, Kind, Labels};
use memwarden_guard::rates::Sample;
use serde::Serialize;

use super::Source;
use super::http::Page;
use crate::verbs::guard::show;

const PLAIN: &str = "text/plain; charset=utf-8";

/// `/`, for browsers.
const INDEX: &str = "<!doctype html>
<html lang=\"en\"><meta charset=\"utf-8\"><title>memwarden guard</title>
<style>body { font: 1rem/1.5 sans-serif; margin: 2rem; max-width: 40rem }</style>
<h1>memwarden guard</h1>
<ul>
<li><a href=\"metrics\">/metrics</a>: the guard's figures for Prometheus
<li><a href=\"show.json\">/show.json</a>: the same as <code>memwarden guard show --json</code>
<li><a href=\"healthz\">/healthz</a>: 200 while a guard is running, 503 otherwise
</ul>
</html>
";

/// State of the budget file.
#[derive(Debug, Clone, Copy)]
pub struct FileState {
    /// The last read of the file succeeded.
    pub reload_ok: bool,
    /// Time of the last successful read.
    pub reloaded_at: SystemTime,
    /// The guard's settings match the file.
    pub applied: bool,
}

impl FileState {
    /// The state after a successful read.
    pub fn reloaded() -> Self {
        Self {
            reload_ok: true,
            reloaded_at: SystemTime::now(),
            applied: true,
        }
    }
}

/// The page of a path.
pub fn page(source: &Source, path: &str) -> Page {
    let (status, content_type, text) = match path {
        "/" => (StatusCode::OK, "text/html; charset=utf-8", INDEX.to_owned()),
        "/metrics" => (StatusCode::OK, metrics::CONTENT_TYPE, metrics_text(source)),
        "/show.json" => show_json(source),
        "/healthz" => match source.read(|guard| guard.settings().map(|_| ())) {
            Ok(()) => (StatusCode::OK, PLAIN, "ok\n".to_owned()),
            Err(error) => (StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{error}\n")),
        },
        _ => (
            StatusCode::NOT_FOUND,
            PLAIN,
            "not found; / lists the pages\n".to_owned(),
        ),
    };
    Page {
        status,
        content_type,
        text,
    }
}

fn show_json(source: &Source) -> (StatusCode, &'static str, String) {
    #[derive(Serialize)]
    struct Failed {
        error: String,
    }
    let found = source.read(|guard| Ok((guard.name(), Sample::take(guard)?)));
    let (status, text) = match found {
        Ok((name, sample)) => (
            StatusCode::OK,
            serde_json::to_string_pretty(&show::document(name, &sample)),
        ),
        Err(error) => (
            StatusCode::SERVICE_UNAVAILABLE,
            serde_json::to_string_pretty(&Failed {
                error: error.to_string(),
            }),
        ),
    };
    match text {
        Ok(text) => (status, "application/json", format!("{text}\n")),
        Err(error) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            PLAIN,
            format!("{error}\n"),
        ),
    }
}

/// The metrics; without a guard the page says so.
fn metrics_text(source: &Source) -> String {
    let mut page = metrics::Page::default();
    let one = Labels::default;
    page.metric(
        "memwarden_build_info",
        Kind::Gauge,
        "The program that serves these metrics.",
        [(one().with("version", env!("CARGO_PKG_VERSION")), 1)],
    );
    let found = source.read(|guard| Ok((guard.name(), Sample::take(guard)?)));
    page.metric(
        "memwarden_guard_up",
        Kind::Gauge,
        "1 while a guard is running and can be read.",
        [(one(), u8::from(found.is_ok()))],
    );
    if let Some(file) = source.file.get() {
        page.metric(
            "memwarden_config_reload_ok",
            Kind::Gauge,
            "1 if the last read of the budget file succeeded; 0 if the previous settings stay.",
            [(one(), u8::from(file.reload_ok))],
        );
        let since = file.reloaded_at.duration_since(SystemTime::UNIX_EPOCH);
        page.metric(
            "memwarden_config_reload_timestamp_seconds",
            Kind::Gauge,
            "Time of the last successful read of the budget file.",
            since.into_iter().map(|since| (one(), since.as_secs())),
        );
        page.metric(
            "memwarden_config_applied",
            Kind::Gauge,
            "1 while the guard's settings match the budget file.",
            [(one(), u8::from(file.applied))],
        );
    }
    if let Ok((name, sample)) = found {
        metrics::guard(&mut page, name, &sample.settings, &sample.cores);
    }
    page.into_text()
}
