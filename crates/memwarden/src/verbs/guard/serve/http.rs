// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small HTTP server: GET and HEAD, one request for each connection, with limits on everything.

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

/// Connections at once; a scraper and a few browsers need fewer. Further ones wait in the kernel's queue.
const CONNECTIONS: usize = 32;

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

/// Accepts connections forever, and answers each with the page of its path.
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

/// Serves one connection. Its errors are the client's problem.
async fn connection(stream: TcpStream, page: Rc<impl Fn(&str) -> Page + 'static>) {
    let service = service_fn(|request: Request<Incoming>| {
        let response = answer(request.method(), request.uri().path(), page.as_ref());
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
