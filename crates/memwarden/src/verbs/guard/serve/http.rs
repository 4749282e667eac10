// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small HTTP server: GET and HEAD, one request for each connection, with limits on everything.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, spawn_local, yield_now};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Connections at once; a scraper and a few browsers need fewer. A further one replaces another.
const CONNECTIONS: usize = 32;

/// Time that a connection has before another may replace it: its request comes right behind it. A kernel's queue of
/// 128 idle ones delays a scraper by 128 / 32 × 50 ms = 0.2 s.
const UNDISTURBED: Duration = Duration::from_millis(50);

/// Largest request head, bytes. hyper's minimum is 8 KiB; a browser's cookies fit.
const REQUEST_BYTES: usize = 16 << 10;

/// Lines in a request's head.
const HEADERS: usize = 64;

/// Time for a complete request. A scraper on the same network needs milliseconds.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Time for a whole connection: a client that reads more slowly would occupy a place that others wait for.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);

/// Pause after the kernel could not accept a connection, as when the process has no free descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// HTTP status.
    pub status: StatusCode,
    /// Its media type.
    pub content_type: &'static str,
    /// Its text.
    pub text: String,
}

/// A connection that is served.
struct Served {
    since: Instant,
    task: AbortHandle,
}

/// Where a connection is among those that are served: first those without a complete request, each from the oldest.
type Order = (bool, u64);

/// The connections that are served. If they are too many, the first one is dropped: a client that connects and sends
/// nothing does not keep the others out.
#[derive(Default)]
struct Places {
    served: RefCell<BTreeMap<Order, Served>>,
    freed: Notify,
}

impl Places {
    /// Waits for a place. If there is none, drops the first connection after its undisturbed time.
    async fn free_one(&self) {
        while let Some(due) = self.due() {
            if due > Instant::now() {
                tokio::select! {
                    () = self.freed.notified() => {}
                    () = sleep_until(due) => {}
                }
                continue;
            }
            // Requests that have arrived are answered first.
            yield_now().await;
            if self.due().is_some_and(|due| due <= Instant::now()) {
                let first = self.served.borrow_mut().pop_first();
                if let Some((_, first)) = first {
                    first.task.abort();
                }
            }
        }
    }

    /// When the first connection may be dropped; `None` if a place is free.
    fn due(&self) -> Option<Instant> {
        let served = self.served.borrow();
        let first = served.values().next();
        let first = first.filter(|_| served.len() >= CONNECTIONS)?;
        Some(first.since + UNDISTURBED)
    }
}

/// A connection's place, which is free again when dropped.
struct Place {
    places: Rc<Places>,
    number: u64,
}

impl Place {
    /// Moves the connection behind those that have no complete request.
    fn has_request(&self) {
        let mut served = self.places.served.borrow_mut();
        if let Some(this) = served.remove(&(false, self.number)) {
            served.insert((true, self.number), this);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut served = self.places.served.borrow_mut();
        for has_request in [false, true] {
            served.remove(&(has_request, self.number));
        }
        self.places.freed.notify_one();
    }
}

/// Accepts connections forever, and answers each with the page of its path.
pub async fn serve(listener: TcpListener, page: impl Fn(&str) -> Page + 'static) {
    let page = Rc::new(page);
    let places = Rc::new(Places::default());
    for number in 0.. {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        places.free_one().await;
        let page = Rc::clone(&page);
        let place = Place {
            places: Rc::clone(&places),
            number,
        };
        let task = spawn_local(async move {
            let served = connection(stream, page.as_ref(), &place);
            let _ = timeout(CONNECTION_TIMEOUT, served).await;
        });
        let served = Served {
            since: Instant::now(),
            task: task.abort_handle(),
        };
        places.served.borrow_mut().insert((false, number), served);
    }
}

/// Serves one connection. Its errors are the client's problem.
async fn connection(stream: TcpStream, page: &impl Fn(&str) -> Page, place: &Place) {
    let service = service_fn(|request: Request<Incoming>| {
        place.has_request();
        let response = answer(request.method(), request.uri().path(), page);
        async move { Ok::<_, Infallible>(response) }
    });
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        // A client that closes its sending half after the request still gets its answer.
        .half_close(true)
        .max_buf_size(REQUEST_BYTES)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// The answer; for a HEAD request hyper sends only the head.
fn answer(method: &Method, path: &str, page: impl Fn(&str) -> Page) -> Response<Full<Bytes>> {
    let allowed = [Method::GET, Method::HEAD].contains(method);
    let page = if allowed {
        page(path)
    } else {
        Page {
            status: StatusCode::METHOD_NOT_ALLOWED,
            content_type: "text/plain; charset=utf-8",
            text: "only GET and HEAD\n".into(),
        }
    };
    let mut response = Response::new(Full::new(Bytes::from(page.text)));
    *response.status_mut() = page.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if !allowed {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}
