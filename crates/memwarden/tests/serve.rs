// SPDX-License-Identifier: MIT OR Apache-2.0
//! `memwarden guard serve` and `guard check` for an administrator, a scraper and a misbehaving client, with the null
//! regulator.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const FILE: &str = "backend = \"null\"\nself_test = false\nmb = [1000]\n";

/// Maximum tries for a condition; far more than any machine needs.
const TRIES: usize = 1000;
const BETWEEN: Duration = Duration::from_millis(20);

fn memwarden(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memwarden"));
    command.arg("guard").args(arguments);
    command
}

/// A running server; ended with the test, even if the test fails.
struct Server {
    child: Child,
    address: SocketAddr,
    errors: PathBuf,
    folder: tempfile::TempDir,
}

impl Server {
    fn start(file: Option<&str>) -> Self {
        Self::start_with(file, |_, _| {})
    }

    fn start_with(file: Option<&str>, change: impl FnOnce(&mut Command, &Path)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("guard.toml");
        let errors = folder.path().join("errors");
        let mut command = memwarden(&["serve", "--listen", "127.0.0.1:0"]);
        if let Some(text) = file {
            fs::write(&config, text).unwrap();
            command.arg("--config").arg(&config);
        }
        command
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&errors).unwrap());
        change(&mut command, folder.path());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .trim_start_matches("http://")
            .trim_end_matches('/');
        let address = address
            .parse()
            .unwrap_or_else(|_| panic!("{line}{}", fs::read_to_string(&errors).unwrap()));
        Self {
            child,
            address,
            errors,
            folder,
        }
    }

    fn write(&self, text: &str) {
        fs::write(self.folder.path().join("guard.toml"), text).unwrap();
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        stream
    }

    /// Sends bytes; returns everything received until the server closes.
    fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may refuse and close before it has received everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn get(&self, path: &str) -> (u16, String) {
        let answer = self.send(format!("GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        (status.unwrap_or(0), body.to_owned())
    }

    fn budgets(&self) -> Vec<Option<u64>> {
        let show: Value = serde_json::from_str(&self.get("/show.json").1).unwrap();
        let budgets = show["settings"]["read_budget_events"].as_object().unwrap();
        budgets.values().map(Value::as_u64).collect()
    }

    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..TRIES {
            if holds(self) {
                return;
            }
            thread::sleep(BETWEEN);
        }
        panic!("{what}: {}", self.said());
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.errors).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The value of a series; `None` if missing.
fn metric(page: &str, series: &str) -> Option<f64> {
    let line = page.lines().find(|line| {
        line.rsplit_once(' ')
            .is_some_and(|(name, _)| name == series)
    })?;
    line.rsplit_once(' ')?.1.parse().ok()
}

#[test]
fn each_path_has_its_page() {
    let server = Server::start(Some(FILE));
    let (status, page) = server.get("/metrics");
    assert_eq!(status, 200);
    assert_eq!(metric(&page, "memwarden_guard_up"), Some(1.0));
    assert_eq!(metric(&page, "memwarden_config_reload_ok"), Some(1.0));
    let budget = "memwarden_core_budget_bytes_per_second{cpu=\"0\",traffic=\"read\"}";
    assert_eq!(metric(&page, budget), Some(1000.0 * 1048576.0));

    let (status, show) = server.get("/show.json");
    assert_eq!(status, 200);
    let show: Value = serde_json::from_str(&show).unwrap();
    assert_eq!(show["backend"], "null");
    assert_eq!(show["settings"]["read_budget_events"]["0"], 16384);
    assert!(!show["cores"].as_array().unwrap().is_empty());

    let (status, index) = server.get("/");
    assert_eq!(status, 200);
    for path in ["metrics", "show.json", "healthz"] {
        assert!(index.contains(&format!("href=\"{path}\"")), "{index}");
        // Every named path exists, also with a query.
        assert_eq!(server.get(&format!("/{path}?x=1")).0, 200);
    }
    assert_eq!(server.get("/healthz"), (200, "ok\n".into()));
    for path in ["/nothing", "//metrics", "/metrics/", "/../etc/passwd"] {
        assert_eq!(server.get(path).0, 404, "{path}");
    }
}

#[test]
fn only_get_and_head() {
    let server = Server::start(Some(FILE));
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"] {
        let answer = server.send(
            format!("{method} /metrics HTTP/1.1\r\nHost: here\r\nContent-Length: 3\r\n\r\nabc")
                .as_bytes(),
        );
        assert!(answer.starts_with("HTTP/1.1 405 "), "{method}: {answer}");
        assert!(
            answer.contains("allow: GET, HEAD\r\n"),
            "{method}: {answer}"
        );
    }
    let answer = server.send(b"HEAD /metrics HTTP/1.1\r\nHost: here\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(
        answer.contains("content-type: text/plain; version=0.0.4"),
        "{answer}"
    );
    assert!(answer.ends_with("\r\n\r\n"), "a HEAD has no body: {answer}");
    assert!(
        server
            .send(b"GET /metrics HTTP/1.0\r\n\r\n")
            .contains("memwarden_guard_up 1")
    );
}

#[test]
fn garbage_half_requests_and_crowds_do_no_harm() {
    let server = Server::start(Some(FILE));
    let mut seed = 1u64;
    let mut random = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        seed.to_be_bytes()[0]
    };
    for length in [1, 10, 100, 1000, 100_000] {
        let garbage: Vec<u8> = (0..length).map(|_| random()).collect();
        server.send(&garbage);
    }
    for request in [
        "\r\n\r\n",
        "GET\r\n\r\n",
        "GET /metrics HTTP/9.9\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "GET /metrics HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        "\u{0}\u{0}\u{0}",
    ] {
        server.send(request.as_bytes());
    }
    // Endless request heads: too long, too many lines.
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(1000));
    for request in [long, many] {
        let answer = server.send(request.as_bytes());
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    // Incomplete requests that stay open while others are answered.
    let half: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all(b"GET /metrics HT").unwrap();
            stream
        })
        .collect();
    assert_eq!(server.get("/metrics").0, 200);
    drop(half);
    // More connections at once than there are places.
    thread::scope(|scope| {
        let crowd: Vec<_> = (0..100)
            .map(|_| scope.spawn(|| server.get("/metrics").0))
            .collect();
        for one in crowd {
            assert_eq!(one.join().unwrap(), 200);
        }
    });
    assert_eq!(server.get("/healthz").0, 200);
}

#[test]
fn idle_connections_do_not_keep_a_scraper_waiting() {
    let server = Server::start(Some(FILE));
    let idle: Vec<TcpStream> = (0..100)
        .map(|number| {
            let mut stream = server.connect();
            if number % 2 == 0 {
                stream.write_all(b"GET /metrics HT").unwrap();
            }
            stream
        })
        .collect();
    assert_eq!(server.get("/metrics").0, 200);
    // A server that had waited for their timeouts would have closed all but the last few.
    let open = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0]);
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let open = idle.iter().filter(|stream| open(stream)).count();
    assert!(open > 20, "{open} of 100 are open");
}

#[test]
fn the_null_regulator_needs_no_test_of_its_traffic() {
    let server = Server::start(Some("backend = \"null\"\nmb = [1000]\n"));
    assert_eq!(server.budgets()[0], Some(16384));
}

#[test]
fn a_hangup_reads_the_file_again_and_refuses_a_bad_one() {
    let server = Server::start(Some(FILE));
    assert_eq!(server.budgets()[0], Some(16384));
    server.write("backend = \"null\"\nself_test = false\nmb = [500]\n");
    server.signal(Signal::HUP);
    server.until("the new budget", |server| server.budgets()[0] == Some(8192));

    server.write("backend = \"null\"\nmb = [0]\n");
    server.signal(Signal::HUP);
    server.until("the refusal", |server| {
        metric(&server.get("/metrics").1, "memwarden_config_reload_ok") == Some(0.0)
    });
    let said = server.said();
    let last = said.lines().last().unwrap();
    for word in [
        "guard.toml line 2, mb: ",
        "from 1 to 1048576",
        "the old settings stay",
    ] {
        assert!(last.contains(word), "{last}");
    }
    assert_eq!(server.budgets()[0], Some(8192));
    assert_eq!(
        metric(&server.get("/metrics").1, "memwarden_config_applied"),
        Some(1.0)
    );

    server.write(FILE);
    server.signal(Signal::HUP);
    server.until("the budget of before", |server| {
        server.budgets()[0] == Some(16384)
    });
}

#[test]
fn a_termination_ends_it_in_order_and_tells_systemd() {
    let mut socket = None;
    let mut server = Server::start_with(Some(FILE), |command, folder| {
        let path = folder.join("notify");
        socket = Some(UnixDatagram::bind(&path).unwrap());
        command.env("NOTIFY_SOCKET", path);
    });
    let socket = socket.unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let told = || {
        let mut buffer = [0; 256];
        let length = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    assert!(told().starts_with("READY=1\nSTATUS=http://127.0.0.1:"));
    server.signal(Signal::HUP);
    assert_eq!(
        (told().as_str(), told().as_str()),
        ("RELOADING=1", "READY=1")
    );
    server.signal(Signal::TERM);
    assert_eq!(told(), "STOPPING=1");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn without_a_guard_the_page_says_so() {
    if Path::new("/sys/module/memguard").exists() {
        eprintln!("skipped: a guard is running on this machine");
        return;
    }
    let server = Server::start(None);
    let (status, page) = server.get("/metrics");
    assert_eq!(
        (status, metric(&page, "memwarden_guard_up")),
        (200, Some(0.0))
    );
    assert!(!page.contains("memwarden_core"), "{page}");
    let (status, show) = server.get("/show.json");
    assert_eq!(status, 503);
    let show: Value = serde_json::from_str(&show).unwrap();
    assert!(
        show["error"]
            .as_str()
            .unwrap()
            .contains("no guard is running")
    );
    assert_eq!(server.get("/healthz").0, 503);
    // Without a file, SIGHUP only logs a message.
    server.signal(Signal::HUP);
    server.until("a word on SIGHUP", |server| {
        server.said().contains("no --config")
    });
}

fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn what_cannot_be_served_is_refused_in_one_line() {
    let server = Server::start(Some(FILE));
    let taken = server.address.to_string();
    let said = refused(&memwarden(&["serve", "--listen", &taken]).output().unwrap());
    assert!(said.contains(&format!("listening on {taken}")), "{said}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guard.toml");
    let output = |text: &str| {
        fs::write(&path, text).unwrap();
        let config = path.to_str().unwrap();
        memwarden(&["serve", "--listen", "127.0.0.1:0", "--config", config])
            .output()
            .unwrap()
    };
    let serve = |text: &str| refused(&output(text));
    assert!(serve("mb = [0]\n").contains("line 1, mb: "));
    assert!(serve("backend = \"moon\"\n").contains("line 1, backend: backend `moon`: give auto"));
    // What only a guard that runs can tell is refused after the line about its event.
    let mut late = output("backend = \"null\"\nself_test = false\n[cpu.8191]\nmb = 5\n");
    let line = late.stderr.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let event: Vec<u8> = late.stderr.drain(..line).collect();
    assert_eq!(
        event,
        b"memwarden: event null counts nothing: no core is held\n"
    );
    assert!(refused(&late).contains("line 4, cpu.8191.mb: there is no CPU 8191"));
    fs::remove_file(&path).unwrap();
    let not_read = |config: &str| {
        let mut command = memwarden(&["serve", "--listen", "127.0.0.1:0", "--config", config]);
        refused(&command.stdin(Stdio::piped()).output().unwrap())
    };
    let said = not_read(path.to_str().unwrap());
    assert!(said.contains("guard.toml"), "{said}");
    let said = not_read("/dev/stdin");
    assert!(said.contains("/dev/stdin: not a regular file"), "{said}");
}

#[test]
fn check_judges_a_file_and_touches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("guard.toml");
    let check = |text: &str| {
        fs::write(&path, text).unwrap();
        memwarden(&["check", path.to_str().unwrap()])
            .output()
            .unwrap()
    };
    let good = check(FILE);
    assert_eq!(good.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&good.stdout).ends_with("guard.toml: well-formed\n"));
    assert!(refused(&check("period = \"1\"\n")).contains("line 1, period: "));
    assert!(refused(&check("backend = \"moon\"\n")).contains("give auto, module, user or null"));
    let both = check("combined = true\nmb = [100]\nwrite_mb = [100]\n");
    assert!(refused(&both).contains("line 3, write_mb: "));

    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd/guard.toml");
    let packaged = memwarden(&["check", packaged.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(packaged.status.code(), Some(0), "{packaged:?}");
}
