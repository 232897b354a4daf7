//! What a request costs whoever sends it: its turn among those of the same access key, or address,
//! and its bytes both ways. What is allowed is `env`'s to know, and whose the request is access
//! control's; a request of somebody without limits has no tab, or one that nobody writes on.

use bytes::Bytes;
use holdfast_base::rates::{Turn, Wanted};
use holdfast_env::clients::{Client, Clients};
use holdfast_env::{Clock, HoldMutex, planted, runtime};
use http_body::{Frame, SizeHint};
use hyper::HeaderMap;
use hyper::header::{HeaderValue, RETRY_AFTER};
use s3s::{Body, S3Result, StdError, s3_error};
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

/// How long a request waits for its turn; one that would wait longer is refused at once, so that
/// places and connections are not full of those who wait.
const WAIT_NS_MAX: u64 = 2_000_000_000;

/// Goes with a request whose client may have limits. What is known of its size is taken ahead, so
/// that requests which come together do not pass a limit together; what came to nothing is given back
/// when the tab is dropped, with the bodies.
pub struct Tab {
    clients: Arc<Clients>,
    clock: Arc<dyn Clock>,
    /// Who pays, once that is known; nobody for who has no limits, and for what is refused because of
    /// them.
    payer: OnceLock<Option<Client>>,
    bytes: Mutex<Counted>,
}

/// Bytes of a request and its answer together.
#[derive(Default)]
struct Counted {
    /// That were taken already.
    taken: u64,
    /// That came or went.
    moved: u64,
}

impl Tab {
    /// Of a request of which nothing is known yet but how long its body is, where it says so.
    pub fn new(
        clients: Arc<Clients>,
        clock: Arc<dyn Clock>,
        body: &impl http_body::Body,
    ) -> Arc<Tab> {
        let expected = body.size_hint().exact().unwrap_or(0);
        let bytes = Mutex::new(Counted { taken: expected, moved: 0 });
        Arc::new(Tab { clients, clock, payer: OnceLock::new(), bytes })
    }

    /// Whether it is known by now who pays.
    pub fn has_payer(&self) -> bool {
        self.payer.get().is_some()
    }

    /// Waits for the turn of a request of `client`, or refuses it; of nobody's, it has one.
    pub async fn wait(&self, client: Option<Client>) -> S3Result<()> {
        let limited = client.filter(|client| self.clients.has_rates(client));
        let Some(client) = limited.filter(|_| !self.has_payer()) else {
            let _ = self.payer.set(None);
            return Ok(());
        };
        let bytes = {
            let mut counted = self.bytes.held();
            // Some may have come before.
            counted.taken = counted.taken.max(counted.moved);
            counted.taken
        };
        let turn = self.reserve(&client, Wanted::Request { bytes });
        let is_refused = matches!(turn, Turn::Refuse(_));
        let _ = self.payer.set(Some(client.clone()).filter(|_| !is_refused));
        self.sit_out(&client, turn).await
    }

    /// Waits for the turn of an answer to a request that changes nothing, or refuses it: how long it
    /// is was not known when the request had its turn.
    pub async fn wait_to_answer(&self, body: &Body) -> S3Result<()> {
        let (Some(Some(client)), Some(bytes @ 1..)) =
            (self.payer.get(), http_body::Body::size_hint(body).exact())
        else {
            return Ok(());
        };
        if planted!("s3.answers-charged-late") {
            return Ok(());
        }
        let turn = self.reserve(client, Wanted::Answer { bytes });
        if !matches!(turn, Turn::Refuse(_)) {
            self.bytes.held().taken += bytes;
        }
        self.sit_out(client, turn).await
    }

    fn reserve(&self, client: &Client, wanted: Wanted) -> Turn {
        self.clients.reserve(client, self.clock.monotonic_ns(), WAIT_NS_MAX, wanted)
    }

    async fn sit_out(&self, client: &Client, turn: Turn) -> S3Result<()> {
        match turn {
            Turn::Go { .. } => {}
            Turn::Wait(wait) => runtime::sleep(Duration::from_nanos(wait.ns)).await,
            Turn::Refuse(wait) => {
                let limit = self.clients.limit(client, wait.limit);
                let mut e = s3_error!(
                    SlowDown,
                    "Please reduce your request rate: {client} may take no more of this node than {limit}"
                );
                let seconds = HeaderValue::from(Duration::from_nanos(wait.ns).as_secs() + 1);
                e.set_headers(HeaderMap::from_iter([(RETRY_AFTER, seconds)]));
                return Err(e);
            }
        }
        Ok(())
    }

    /// Takes note of bytes that came or went.
    pub fn bytes(&self, bytes: usize) {
        let mut counted = self.bytes.held();
        counted.moved += bytes as u64;
        let more = counted.moved.saturating_sub(counted.taken);
        if let Some(Some(client)) = self.payer.get()
            && more > 0
        {
            counted.taken += more;
            self.clients.take(client, self.clock.monotonic_ns(), 0, more);
        }
    }

    /// The body of the answer, which is counted as it is sent.
    pub fn counts(self: Arc<Self>, body: Body) -> Body {
        if !matches!(self.payer.get(), Some(Some(_))) {
            return body;
        }
        match body.bytes() {
            Some(whole) => {
                self.bytes(whole.len());
                body
            }
            None => Body::http_body_unsync(Outgoing { body, tab: self }),
        }
    }
}

impl Drop for Tab {
    fn drop(&mut self) {
        let Counted { taken, moved } = *self.bytes.held();
        if let Some(Some(client)) = self.payer.get()
            && taken > moved
        {
            self.clients.give_back(client, taken - moved);
        }
    }
}

struct Outgoing {
    body: Body,
    tab: Arc<Tab>,
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.tab.bytes(frame.data_ref().map_or(0, Bytes::len));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        http_body::Body::size_hint(&self.body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_base::rates::Allowance;
    use std::pin::pin;
    use std::task::Waker;

    struct Still;

    impl Clock for Still {
        fn monotonic_ns(&self) -> u64 {
            0
        }

        fn unix_ms(&self) -> u64 {
            0
        }
    }

    /// Of what does not wait.
    fn now<T>(future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("it waits"),
        }
    }

    fn key() -> Client {
        Client::Key("AKEY".to_owned())
    }

    fn limited(bytes: u64) -> Arc<Clients> {
        Clients::new(Allowance { bytes, ..Allowance::default() }, Allowance::default())
    }

    fn tab(clients: &Arc<Clients>, body: &Body) -> Arc<Tab> {
        Tab::new(clients.clone(), Arc::new(Still), body)
    }

    #[test]
    fn requests_that_come_together_do_not_pass_a_limit_of_bytes_together() {
        let (clients, nothing) = (limited(1000), Body::empty());
        let gets: Vec<Arc<Tab>> = (0..4).map(|_| tab(&clients, &nothing)).collect();
        for get in &gets {
            assert!(now(get.wait(Some(key()))).is_ok(), "nobody knows how long its answer will be");
        }
        let long = Body::from(vec![7; 1_000_000]);
        let go = gets.iter().filter(|get| now(get.wait_to_answer(&long)).is_ok());
        assert_eq!(go.count(), 1);
        // What is brought is known before.
        let clients = limited(1000);
        let puts: Vec<Arc<Tab>> = (0..4).map(|_| tab(&clients, &long)).collect();
        let go = puts.iter().filter(|put| now(put.wait(Some(key()))).is_ok());
        assert_eq!(go.count(), 1);
        let other = tab(&clients, &long);
        assert!(now(other.wait(Some(Client::Key("OTHER".to_owned())))).is_ok());
    }

    #[test]
    fn what_was_taken_ahead_and_did_not_come_is_given_back() {
        let (clients, long) = (limited(1000), Body::from(vec![7; 1_000_000]));
        let put = tab(&clients, &long);
        assert!(now(put.wait(Some(key()))).is_ok());
        assert!(matches!(clients.turn(&key(), 0), Turn::Refuse(_)));
        put.bytes(900);
        drop(put);
        assert!(matches!(clients.turn(&key(), 0), Turn::Go { .. }));
        // Nothing comes back of what came, and nothing is taken twice.
        let get = tab(&clients, &Body::empty());
        assert!(now(get.wait(Some(key()))).is_ok());
        assert!(now(get.wait_to_answer(&long)).is_ok());
        drop(get.counts(Body::from(vec![7; 1_000_000])));
        let Turn::Refuse(wait) = clients.turn(&key(), 0) else { panic!("it was sent") };
        assert_eq!(wait.ns, 999_900_000_000, "a second's worth was there, and 900 of it used");
    }
}
