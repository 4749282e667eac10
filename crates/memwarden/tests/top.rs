// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden top` in a pipe, with the null regulator.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Ended with the test, even if the test fails.
struct Top(Child);

impl Top {
    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.0.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn after_a_pause_no_interval_is_shorter_than_half() {
    let child = Command::new(env!("CARGO_BIN_EXE_memwarden"))
        .args(["top", "--backend", "null", "--interval", "20ms", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut top = Top(child.unwrap());
    let lines = BufReader::new(top.0.stdout.take().unwrap()).lines();
    let mut intervals_s = lines.map(|line| {
        let object: Value = serde_json::from_str(&line.unwrap()).unwrap();
        object["interval_s"].as_f64().unwrap()
    });
    let mut seen: Vec<f64> = intervals_s.by_ref().take(3).collect();
    top.signal(Signal::STOP);
    // Twenty intervals.
    thread::sleep(Duration::from_millis(400));
    top.signal(Signal::CONT);
    // Up to the interval with the pause, and some more.
    let pause = intervals_s.by_ref().find(|interval_s| {
        seen.push(*interval_s);
        *interval_s >= 0.4
    });
    assert!(pause.is_some());
    seen.extend(intervals_s.take(20));
    assert!(
        seen.iter().all(|interval_s| *interval_s >= 0.01),
        "{seen:?}"
    );
}
