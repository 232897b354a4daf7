//! What a client does about a server that says nothing while answers are awaited, before the silence is too long:
//! it asks whether the server is there, which every node answers at once whatever it is busy with, and where that is
//! not answered either, tells whoever wants to know. What is asked changes nothing about when the silence is too long
//! for the answers that are awaited.

use super::core::Core;
use super::{ClientOptions, RequestId};
use holdfast_env::net::Endpoint;
use holdfast_env::planted;
use holdfast_env::trial::Knob;
use holdfast_wire::OP_PING;
use std::time::Duration;

/// Silence after which a client asks whether its server is there.
static ASK_AFTER_MS: Knob = Knob::new("client.ask-after-ms", 5_000, &[20]);
/// How long the answer to that may take before a silence is told.
static TELL_AFTER_MS: Knob = Knob::new("client.tell-after-ms", 5_000, &[20]);

/// A server that was asked whether it is there, and has not answered.
#[derive(Clone, Copy, Debug)]
pub struct Silent<'a> {
    /// Whom nothing was heard of.
    pub endpoint: &'a Endpoint,
    /// For how long.
    pub heard_nothing: Duration,
    /// For how long it is waited for from here on, before the connection counts as broken.
    pub waits: Option<Duration>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is not long since something came.
    Heard,
    /// It was asked, by this request.
    Asked(RequestId),
    /// It was told, or there is nothing to tell: the rest of the silence is waited for.
    Waits(Option<RequestId>),
}

pub(super) struct Silence {
    stage: Stage,
}

/// How long a receive waits from now on.
pub(super) type Timeout = Option<Duration>;

impl Silence {
    pub fn new() -> Silence {
        Silence { stage: Stage::Heard }
    }

    /// How long the first receive of a connection waits.
    pub fn begin(&mut self, options: &ClientOptions) -> Timeout {
        self.stage = Stage::Heard;
        match is_told(options) {
            true => Some(ask_after()),
            false => options.read_timeout,
        }
    }

    /// Nothing came for as long as a receive waits. How long the next one does; nothing where it was too long.
    /// Nobody is asked where nothing can be sent.
    pub fn goes_on(
        &mut self,
        core: &mut Core,
        out: Option<&mut Vec<u8>>,
        endpoint: &Endpoint,
        options: &ClientOptions,
    ) -> Option<Timeout> {
        let tell = options.silence_told.filter(|_| is_told(options))?;
        let heard_nothing = ask_after() + tell_after();
        let rest = options.read_timeout.map(|most| most - heard_nothing);
        match self.stage {
            Stage::Heard => {
                if planted!("client.told-unasked") {
                    tell(Silent { endpoint, heard_nothing, waits: rest });
                }
                let asked = out.and_then(|out| core.submit(out, OP_PING, 0, 0, |_| {}).ok());
                let Some(asked) = asked else {
                    self.stage = Stage::Waits(None);
                    return Some(options.read_timeout.map(|most| most - ask_after()));
                };
                // Nobody takes the answer: that it has come is all.
                core.forget(asked);
                self.stage = Stage::Asked(asked);
                Some(Some(tell_after()))
            }
            Stage::Asked(asked) => {
                tell(Silent { endpoint, heard_nothing, waits: rest });
                self.stage = Stage::Waits(Some(asked));
                Some(rest)
            }
            Stage::Waits(_) => None,
        }
    }

    /// Something came. How long receives wait from now on, where that is another time than before.
    pub fn is_heard(&mut self, core: &Core, options: &ClientOptions) -> Option<Timeout> {
        match self.stage {
            Stage::Heard => None,
            Stage::Asked(asked) | Stage::Waits(Some(asked)) if !core.is_awaited(asked) => {
                // It is there, and what it was asked before takes its time.
                self.stage = Stage::Waits(None);
                Some(options.read_timeout.map(|most| most - ask_after()))
            }
            Stage::Asked(_) | Stage::Waits(_) => Some(self.begin(options)),
        }
    }
}

/// Whether silences are told, and so long that there is something to tell before they are too long.
fn is_told(options: &ClientOptions) -> bool {
    let is_long = options.read_timeout.is_none_or(|most| most > ask_after() + tell_after());
    options.silence_told.is_some() && is_long
}

fn ask_after() -> Duration {
    Duration::from_millis(ASK_AFTER_MS.get())
}

fn tell_after() -> Duration {
    Duration::from_millis(TELL_AFTER_MS.get())
}
