//! The S3 port: threads that each serve some of the connections, and the limits that keep one
//! client from taking what belongs to all. A thread may wait for a disk: there are more threads
//! than cores, so that as many reads wait at once.

use crate::access::{Access, Peer};
use crate::admin::Admin;
use crate::door::{self, Terms};
use crate::forms::FORM_BYTES_MAX;
use crate::front::Ids;
use crate::host::Domain;
use crate::hot::Hot;
use crate::incoming::share_of;
use crate::photos::Scalers;
use crate::service::Face;
use crate::tab::Tab;
use crate::trail::Note;
use crate::{cors, forms, front, native};
use holdfast_base::Result;
use holdfast_blob::Blobs;
use holdfast_env::clients::{Client, Clients};
use holdfast_env::local::memory_bytes;
use holdfast_env::runtime::{Runtime, Timer};
use holdfast_env::tls::Certificates;
use holdfast_env::{Budget, RealRng, Rng, event, planted};
use holdfast_node::Audit;
use http_body::{Frame, SizeHint};
use hyper::body::{Bytes, Incoming};
use hyper::service::Service;
use hyper::{Method, Request, Response, StatusCode, Uri};
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, HttpError, S3Error, S3Result};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// What clients may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at once; for further ones those that do least make way.
    pub connections: usize,
    /// What this process may hold for all of its clients, on whatever port.
    pub budget: Arc<Budget>,
    /// What each access key, and each reader without a signature, may take.
    pub clients: Arc<Clients>,
    /// For the whole head of a request, from the first byte or the answer before.
    pub head: Duration,
    /// Without a byte of a body.
    pub stall: Duration,
    /// That serve connections.
    pub threads: usize,
    /// Memory for objects that were asked for lately.
    pub hot_bytes: u64,
}

/// How clients may speak to the port, and who takes note of it.
#[derive(Clone, Default)]
pub struct Entrance {
    /// What it shows over TLS; without any it speaks none.
    pub certificates: Option<Arc<Certificates>>,
    /// Below which buckets are host names.
    pub domain: Option<Domain>,
    /// Where what changes something is written down.
    pub audit: Option<Arc<Audit>>,
}

/// Connections of the port.
pub const CONNECTIONS_MAX: usize = 4096;
/// Of one document: a thousand keys to delete, each character a reference, or ten thousand parts.
const XML_BYTES_MAX: usize = 8 << 20;
/// What is held for a document, in documents: as it came, in one piece, and what it says.
const XML_COPIES: u64 = 4;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: CONNECTIONS_MAX,
            budget: Budget::new(Budget::default_bytes(memory_bytes())),
            clients: Clients::without_limits(),
            head: Duration::from_secs(60),
            stall: Duration::from_secs(60),
            threads: std::thread::available_parallelism()
                .map_or(1, |cores| cores.get())
                .saturating_mul(4)
                .clamp(16, 64),
            hot_bytes: 64 << 20,
        }
    }
}

/// Serves until it is dropped.
pub struct Server {
    runtimes: Vec<Runtime>,
    hot: Arc<Hot>,
}

#[derive(Clone)]
struct Door {
    service: S3Service,
    blobs: Arc<Blobs>,
    limits: Arc<Limits>,
    domain: Option<Domain>,
    audit: Option<Arc<Audit>>,
    /// Who is at the other end of a connection.
    peer: Option<Peer>,
    budget: Arc<Budget>,
    ids: Arc<Ids>,
}

impl Server {
    /// Listens on `address`, with a runtime a core; ends when it is dropped.
    pub fn start(
        address: SocketAddr,
        blobs: Arc<Blobs>,
        limits: Limits,
        entrance: Entrance,
    ) -> Result<Server> {
        let access = Arc::new(Access { blobs: blobs.clone() });
        let budget = limits.budget.clone();
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let scalers = Arc::new(Scalers::start(cores)?);
        let hot = Arc::new(Hot::new(limits.hot_bytes));
        let face = Face {
            blobs: blobs.clone(),
            access,
            budget: budget.clone(),
            scalers,
            hot: hot.clone(),
        };
        let mut builder = S3ServiceBuilder::new(face);
        let mut config = S3Config::default();
        config.post_object_max_file_size = FORM_BYTES_MAX;
        config.xml_max_body_size = XML_BYTES_MAX;
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(config))));
        builder.set_auth(Access { blobs: blobs.clone() });
        builder.set_access(Access { blobs: blobs.clone() });
        if let Some(domain) = entrance.domain.clone() {
            builder.set_host(domain);
        }
        builder.set_route(Admin { blobs: blobs.clone(), hot: hot.clone() });
        let door = Door {
            service: builder.build(),
            blobs,
            limits: Arc::new(limits),
            domain: entrance.domain,
            audit: entrance.audit,
            peer: None,
            budget,
            ids: Arc::new(Ids::new(RealRng.next_u64())),
        };
        let threads = door.limits.threads;
        let certificates = entrance.certificates;
        let within = (door.limits.head, door.limits.stall);
        let terms = Terms::new(door.limits.connections, within, certificates, &door.budget);
        let runtimes =
            door::listen(("s3", address, threads), &terms, move |address, is_encrypted| Door {
                peer: Some(Peer { address, is_encrypted }),
                ..door.clone()
            })?;
        Ok(Server { runtimes, hot })
    }

    /// What the cache of objects has done.
    pub fn hot(&self) -> &Arc<Hot> {
        &self.hot
    }

    /// Where it listens, with the port that was found for port 0.
    pub fn address(&self) -> Option<SocketAddr> {
        self.runtimes.first().map(Runtime::address)
    }
}

type Served = Pin<Box<dyn Future<Output = std::result::Result<Response<Body>, HttpError>> + Send>>;

impl Service<Request<Incoming>> for Door {
    type Response = Response<Body>;
    type Error = HttpError;
    type Future = Served;

    fn call(&self, req: Request<Incoming>) -> Served {
        let door = self.clone();
        Box::pin(door.serve(req))
    }
}

impl Door {
    async fn serve(
        self,
        mut req: Request<Incoming>,
    ) -> std::result::Result<Response<Body>, HttpError> {
        let place = match &self.domain {
            Some(domain) => domain.place(req.uri(), req.headers()),
            None => Ok(None),
        };
        let place = match place {
            Ok(place) => place,
            Err(refused) => return refusal(refused),
        };
        let at = place.as_ref().unwrap_or(req.uri());
        let tab = self.tab(req.body());
        if at.path().starts_with(native::PREFIX) {
            // Asked for by who knows a pointer, and signed by nobody.
            let answer = || native::answer(&self.blobs, req.method(), at.path());
            let response = match &tab {
                None => answer(),
                Some(tab) => match tab.wait(self.somebody()).await {
                    Ok(()) => self.in_turn(tab, true, answer()).await?,
                    Err(refused) => refusal(refused)?,
                },
            };
            return Ok(counted(tab, response));
        }
        let cross_origin = match *req.method() == Method::OPTIONS {
            true => None,
            false => cors::headers(&self.blobs, req.method().as_str(), at, req.headers()),
        };
        if let Some(peer) = self.peer {
            req.extensions_mut().insert(peer);
        }
        let note = self.audit.as_ref().map(|audit| (audit, Note::default()));
        if let Some((_, note)) = &note {
            req.extensions_mut().insert(note.clone());
        }
        if let Some(tab) = &tab {
            req.extensions_mut().insert(tab.clone());
        }
        let looks = [Method::GET, Method::HEAD, Method::OPTIONS].contains(req.method());
        let mut response = match self.answer(req, place, tab.clone()).await {
            Ok(answered) => answered?,
            Err(refused) => refusal(refused)?,
        };
        if let Some(tab) = &tab {
            response = self.in_turn(tab, looks, response).await?;
        }
        front::of_a_part(&mut response);
        front::refer(&mut response);
        front::explain(&mut response);
        let failed = response.status() == StatusCode::INTERNAL_SERVER_ERROR;
        let said = failed.then(|| response.body().bytes().unwrap_or_default());
        let id = self.ids.mark(&mut response);
        if let Some(said) = said {
            event!(RequestFailed, String::from_utf8_lossy(&said), request = id);
        }
        if let Some((audit, note)) = note {
            let address = self.peer.map(|peer| peer.address.to_string()).unwrap_or_default();
            note.keep(audit, (address, &id), &response).await;
        }
        if let Some(headers) = cross_origin {
            response.headers_mut().extend(headers);
        }
        Ok(counted(tab, response))
    }

    /// For a request that may cost its sender something.
    fn tab(&self, body: &Incoming) -> Option<Arc<Tab>> {
        let clients = &self.limits.clients;
        let clock = || self.blobs.node().machine.clock.clone();
        clients.limits_s3().then(|| Tab::new(clients.clone(), clock(), body))
    }

    /// Whoever is at the other end, of whom nothing was proved.
    fn somebody(&self) -> Option<Client> {
        self.peer.map(|peer| Client::at(peer.address))
    }

    /// The answer when it has its turn, or a refusal in its place. What was refused before anybody
    /// had to pay for it, for a signature that is wrong, say, is somebody's who proved nothing. An
    /// answer that tells of a change always goes.
    async fn in_turn(&self, tab: &Tab, looks: bool, response: Response<Body>) -> Answered {
        let failed = response.status().as_u16() >= 400;
        if !tab.has_payer()
            && (looks || failed)
            && !planted!("s3.refused-for-nothing")
            && let Err(refused) = tab.wait(self.somebody()).await
        {
            return refusal(refused);
        }
        match looks && !failed {
            true => {
                tab.wait_to_answer(response.body()).await.map_or_else(refusal, |()| Ok(response))
            }
            false => Ok(response),
        }
    }
}

fn refusal(refused: S3Error) -> Answered {
    refused.to_http_response().map_err(|e| HttpError::new(e.into()))
}

fn counted(tab: Option<Arc<Tab>>, response: Response<Body>) -> Response<Body> {
    match tab {
        Some(tab) => response.map(|body| tab.counts(body)),
        None => response,
    }
}

type Answered = std::result::Result<Response<Body>, HttpError>;

impl Door {
    /// What the library answers, or what is refused before it. `place` is the request's URI with
    /// the bucket in the path, where that is not its own; the library gets what was signed.
    async fn answer(
        &self,
        mut req: Request<Incoming>,
        place: Option<Uri>,
        tab: Option<Arc<Tab>>,
    ) -> S3Result<Answered> {
        let at = place.unwrap_or_else(|| req.uri().clone());
        let at = &at;
        front::check(req.method(), at, req.headers())?;
        front::drop_odd_range(at, req.headers_mut());
        if *req.method() == Method::OPTIONS {
            return cors::preflight(&self.blobs, at, req.headers()).map(Ok);
        }
        let stall = self.limits.stall;
        let timed = |body| Timed { body, stall, timer: None, tab };
        if let Some(boundary) = forms::boundary(req.method(), req.headers()) {
            let access = Access { blobs: self.blobs.clone() };
            let (at, req) = (at.clone(), req.map(timed));
            let form = (&at, boundary.as_str());
            let (req, _share) = forms::receive(&access, &self.budget, form, req).await?;
            return Ok(self.service.call(req).await);
        }
        let documents =
            front::takes_document(req.method(), at) && !planted!("s3.documents-not-counted");
        let bytes = http_body::Body::size_hint(req.body()).upper().unwrap_or(u64::MAX);
        let bytes = bytes.min(XML_BYTES_MAX as u64) * XML_COPIES * documents as u64;
        let _share = match bytes {
            0 => None,
            _ => Some(share_of(&self.budget, bytes)?),
        };
        let req = req.map(|body| match http_body::Body::size_hint(&body).exact() {
            Some(0) => Body::empty(),
            _ => Body::http_body(timed(body)),
        });
        Ok(self.service.call(req).await)
    }
}

/// A body that must go on.
struct Timed {
    body: Incoming,
    stall: Duration,
    /// Made when it has to be waited for.
    timer: Option<Timer>,
    /// Of whoever sends it.
    tab: Option<Arc<Tab>>,
}

impl http_body::Body for Timed {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, std::io::Error>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                this.timer = None;
                if let (Some(tab), Some(Ok(frame))) = (&this.tab, &frame) {
                    tab.bytes(frame.data_ref().map_or(0, Bytes::len));
                }
                Poll::Ready(frame.map(|frame| frame.map_err(std::io::Error::other)))
            }
            Poll::Pending => {
                let stall = this.stall;
                let timer = this.timer.get_or_insert_with(|| Timer::after(stall));
                match timer.poll(cx) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(()) => {
                        let e = std::io::Error::new(std::io::ErrorKind::TimedOut, "timed out");
                        Poll::Ready(Some(Err(e)))
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
