//! The dashboard: one page over HTTP on a loopback address, and the data that it asks for once a second.
//!
//! ```text
//!   GET /               page.html  ┐
//!   GET /dashboard.css  page.css   ├─ parts of the program: nothing comes from elsewhere
//!   GET /dashboard.js   page.js    ┘
//!   GET /data.json      {"status": that of `status --json`, "bottleneck": top's sentence, "sas": …}
//! ```
//!
//! The page computes rates from two answers, as `top` does; the bottleneck's sentence is `top`'s own
//! ([`crate::watch`]), of the time since the last data. Everyone on the machine may ask, and so may every
//! page in a browser here: the cost of answering is bounded as that of the metrics, a name that is no local
//! one is refused (DNS rebinding), other sites may neither read nor frame it, and what it shows has no keys.
//! Nothing can be changed here.

mod busiest;
mod sentence;

use super::api::Shared;
use super::bodies::{Bodies, Body};
use super::clients::{self, Admission, Limits};
use super::http::{self, Hosts, Page, Refusal, Site};
use super::report;
use super::timed::{Stream, Timed};
use busiest::Busiest;
use sentence::Sentence;
use serde_json::{Map, Value, json};
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use testudo_packet::DropReason;

/// A browser has up to six connections to a site, some of them opened ahead and silent.
const LIMITS: Limits = Limits { served: 16, refused: 4 };
/// How long a client may take to send its request and read the answer, in total.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long refusing a client may take.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);
/// How long data are served before they are rendered anew: less than the page's second, so that each of its
/// questions finds news.
const FRESH: Duration = Duration::from_millis(500);
/// The path of the data.
const DATA: &str = "/data.json";

const SITE: Site = Site {
    paths: &["/", "/dashboard.css", "/dashboard.js", DATA],
    elsewhere: "the page here is /",
    hosts: Hosts::Local,
};

/// Path, content type and content of what does not change.
const PARTS: [(&str, &str, &str); 3] = [
    ("/", "text/html; charset=utf-8", include_str!("page.html")),
    ("/dashboard.css", "text/css; charset=utf-8", include_str!("page.css")),
    ("/dashboard.js", "text/javascript; charset=utf-8", include_str!("page.js")),
];

/// Styles, scripts and data come from here alone, and nothing else from anywhere; no site may frame or read
/// it.
const HEADERS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
     X-Content-Type-Options: nosniff\r\nX-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n\
     Cross-Origin-Resource-Policy: same-origin\r\nCross-Origin-Opener-Policy: same-origin\r\n\
     Cache-Control: no-store\r\n";

/// The dashboard's address could not be used.
#[derive(Debug, thiserror::Error)]
#[error("dashboard on {address}: {source}")]
pub struct DashboardError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// The address that the dashboard is served on.
#[derive(Debug)]
pub struct DashboardSocket {
    listener: TcpListener,
    address: SocketAddr,
}

impl DashboardSocket {
    /// Binds `address`; clients wait until [`serve`](Self::serve).
    ///
    /// # Errors
    /// [`DashboardError`] if the address is taken or the system refuses.
    pub fn bind(address: SocketAddr) -> Result<Self, DashboardError> {
        let error = |source| DashboardError { address, source };
        let listener = TcpListener::bind(address).map_err(error)?;
        let address = listener.local_addr().map_err(error)?;
        Ok(Self { listener, address })
    }

    /// The address that was bound.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves `http://ADDRESS/` on its own threads until the process ends.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn serve(self, shared: Arc<Shared>) -> Result<(), DashboardError> {
        let Self { listener, address } = self;
        let (bodies, looks) = (Bodies::new(FRESH), Mutex::new(Looks::default()));
        let data = move || {
            let now = Instant::now();
            bodies.get(now, |_| {
                let mut looks = looks.lock().unwrap_or_else(PoisonError::into_inner);
                serde_json::to_string(&data(&shared, &mut looks, now)).map_err(|_| fmt::Error)
            })
        };
        serve(listener, PATIENCE, data).map_err(|source| DashboardError { address, source })
    }
}

/// A look that is longer ago says nothing of now.
const RECENT: Duration = Duration::from_secs(10);

/// What the last look has seen.
#[derive(Debug, Default)]
struct Looks {
    busiest: Busiest,
    sentence: Sentence,
}

/// What the page shows, at `now`.
fn data(shared: &Shared, looks: &mut Looks, now: Instant) -> Value {
    let installed = shared.installed();
    let status = report::status(&shared.facts, &installed);
    let (sas, count) = looks.busiest.look(shared, &installed, now);
    let bottleneck = looks.sentence.look(&status, now);
    let words = DropReason::ALL.iter().map(|reason| (reason.name().to_owned(), json!(reason.description())));
    let omitted = count.saturating_sub(sas.len());
    json!({
        "status": status,
        "bottleneck": bottleneck,
        "sas": sas,
        "sas_count": count,
        "sas_omitted": omitted,
        "drop_words": words.collect::<Map<_, _>>(),
    })
}

fn serve(
    listener: TcpListener,
    patience: Duration,
    data: impl Fn() -> Body + Send + Sync + 'static,
) -> io::Result<()> {
    clients::serve("dashboard", listener, LIMITS, move |stream, admission| match admission {
        Admission::Serve => serve_client(Timed::new(stream, patience), &data),
        Admission::Refuse => {
            let mut stream = Timed::new(stream, REFUSAL_PATIENCE);
            // The request is read nevertheless: the client would not read an answer before it has sent it.
            let refusal =
                http::read_request(&mut stream, &SITE).err().unwrap_or(Some(Refusal::TooManyClients));
            refuse(stream, refusal);
        }
    })
}

fn serve_client<S: Stream>(mut stream: Timed<S>, data: &impl Fn() -> Body) {
    let (method, path) = match http::read_request(&mut stream, &SITE) {
        Ok(request) => request,
        Err(refusal) => return refuse(stream, refusal),
    };
    let answered = match PARTS.iter().find(|(of, ..)| *of == path) {
        Some((_, kind, body)) => http::answer(&mut stream, method, &Page { kind, headers: HEADERS, body }),
        None => {
            let Ok(body) = data() else { return http::refuse(stream, Refusal::Failed) };
            http::answer(
                &mut stream,
                method,
                &Page { kind: "application/json", headers: HEADERS, body: &body },
            )
        }
    };
    // A client that went away, or was too slow, is ignored.
    if answered.is_ok() {
        stream.finish();
    }
}

/// `None` if the client has gone.
fn refuse<S: Stream>(mut stream: Timed<S>, refusal: Option<Refusal>) {
    if let Some(refusal) = refusal {
        stream.grant(REFUSAL_PATIENCE);
        http::refuse(stream, refusal);
    }
}

#[cfg(test)]
mod tests;
