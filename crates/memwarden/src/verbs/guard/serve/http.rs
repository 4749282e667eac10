// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small HTTP server: GET and HEAD, one request a connection, everything bounded.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Connections at once; a scraper and a few people need less. Further ones wait in the kernel's queue.
const CONNECTIONS: usize = 32;

/// The longest request, head and all. Below 8 KiB hyper doesn't go; a browser's cookies fit.
const REQUEST_BYTES: usize = 16 << 10;

/// Lines in a request's head.
const HEADERS: usize = 64;

/// For a request to be there. A scraper on the same network needs milliseconds.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// For all of a connection: whoever reads the answer slower than this holds a place that others wait for.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(15);

/// Pause after the kernel could not hand over a connection, as when all of the process's files are open.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// How it went.
    pub status: StatusCode,
    /// Its media type.
    pub content_type: &'static str,
    /// Its text.
    pub text: String,
}

/// Accepts connections for ever, and answers each with the page of its path.
pub async fn serve(listener: TcpListener, page: impl Fn(&str) -> Page + 'static) {
    let page = Rc::new(page);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let page = Rc::clone(&page);
        tokio::task::spawn_local(async move {
            let _ = timeout(CONNECTION_TIMEOUT, connection(stream, page)).await;
            drop(place);
        });
    }
}

/// One connection. What goes wrong in it is the other side's affair.
async fn connection(stream: TcpStream, page: Rc<impl Fn(&str) -> Page + 'static>) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = answer(request.method(), request.uri().path(), page.as_ref());
        async move { Ok::<_, Infallible>(response) }
    });
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        // Who closes its half after asking still gets its answer.
        .half_close(true)
        .max_buf_size(REQUEST_BYTES)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// The answer; of a HEAD hyper sends the head alone.
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
