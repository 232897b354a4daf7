//! A ride over images of one mark that goes on elsewhere: what is still to be received, who is ridden
//! for which part of it, and what is left when one breaks off. Images of one mark hold the same items
//! everywhere, so what is left of one view's is taken from others', whatever their parts. Pure: who rides
//! says what came.

use super::select::{Candidate, Chosen, select};
use holdfast_base::checksum::crc32c;
use holdfast_base::codec::{Decode, DecodeError, Encode, Reader};
use holdfast_base::ids::Index;
use holdfast_base::text::{from_hex, to_hex};
use holdfast_base::{Error, Result, codec_struct};
use holdfast_env::planted;
use holdfast_wire::slab::{Range, Sums};
use holdfast_wire::view::{Board, Boarded, Place};
use std::collections::BTreeMap;

/// In front of a token, so that nobody takes something else for one.
const TOKEN: &str = "ride.";

/// Hashes of which everything is still to come that lies behind a place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stretch {
    low: u64,
    high: u64,
    behind: Option<Place>,
}
codec_struct!(Stretch { low, high, behind });

/// What says that images are of the same entry of the same log, and were made alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Begun {
    entry_crc: u32,
    digest: u64,
}
codec_struct!(Begun { entry_crc, digest });

/// Of which entry's images, and what is left of them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Left {
    /// A checksum of what is ridden, and how: the caller's.
    what: u32,
    index: Index,
    /// Once somebody has said it.
    begun: Option<Begun>,
    /// What was asked for at first.
    low: u64,
    high: u64,
    stretches: Vec<Stretch>,
    /// Of what was received, where that is to be held against something.
    came: Option<Box<Sums>>,
}

/// What came is behind everything else, and not there where nobody sums up: as in tokens of builds before.
impl Encode for Left {
    fn encode(&self, out: &mut Vec<u8>) {
        let Left { what, index, begun, low, high, stretches, came } = self;
        what.encode(out);
        index.encode(out);
        begun.encode(out);
        low.encode(out);
        high.encode(out);
        stretches.encode(out);
        came.iter().for_each(|came| came.encode(out));
    }
}

impl Decode for Left {
    fn decode(reader: &mut Reader<'_>) -> std::result::Result<Left, DecodeError> {
        Ok(Left {
            what: u32::decode(reader)?,
            index: Index::decode(reader)?,
            begun: Option::decode(reader)?,
            low: u64::decode(reader)?,
            high: u64::decode(reader)?,
            stretches: Vec::decode(reader)?,
            came: match reader.remaining() {
                0 => None,
                _ => Some(Box::new(Sums::decode(reader)?)),
            },
        })
    }
}

/// What somebody is ridden for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Names it here.
    pub number: u64,
    /// Whose image: its place in the list of candidates.
    pub candidate: usize,
    /// Of keys' hashes.
    pub range: Range,
    /// Not before what lies behind this.
    pub behind: Option<Place>,
}

/// A ride over images of one mark.
#[derive(Debug)]
pub struct Itinerary {
    what: u32,
    index: Index,
    whole: Range,
    begun: Option<Begun>,
    /// Nobody rides for these.
    left: Vec<Stretch>,
    /// What is left of each leg that is being ridden, by its heads.
    legs: BTreeMap<u64, Vec<Stretch>>,
    number: u64,
    /// See [`Itinerary::came`].
    came: Option<Box<Sums>>,
}

impl Itinerary {
    /// Of everything in a range. `what` is a checksum of the topic, and of all else that the caller asks
    /// for.
    pub fn new(index: Index, range: Range, what: u32) -> Itinerary {
        let left = vec![Stretch { low: range.low(), high: range.high(), behind: None }];
        let (whole, legs) = (range, BTreeMap::new());
        Itinerary { what, index, whole, begun: None, left, legs, number: 0, came: None }
    }

    /// Of what a [`Itinerary::token`] says is left, of a ride of the same.
    pub fn of_token(token: &str, what: u32) -> Result<Itinerary> {
        let bytes = token.trim_end().strip_prefix(TOKEN).and_then(from_hex);
        let left = bytes.as_deref().and_then(|bytes| {
            let (left, crc) = bytes.split_last_chunk::<4>()?;
            (crc32c(left).to_le_bytes() == *crc).then(|| Left::from_bytes(left).ok())?
        });
        let is_sound = |left: &Left| {
            let of_it = |stretch: &Stretch| {
                let from = stretch.behind.as_ref().map(|place| u64::from(place.hash));
                left.low <= stretch.low
                    && stretch.low < stretch.high
                    && stretch.high <= left.high
                    && from.is_none_or(|from| from == stretch.low)
            };
            let is_range = left.low <= left.high && left.high <= Range::ALL.high();
            is_range && left.stretches.iter().all(of_it)
        };
        match left {
            Some(left) if left.what != what => Err(Error::invalid(
                "go on with a ride: the token is of another topic, or of a ride with other options: give \
                 those that it had",
            )),
            Some(left) if is_sound(&left) => {
                let Left { index, begun, low, high, stretches, came, .. } = left;
                let (whole, legs) = (Range::new(low, high), BTreeMap::new());
                Ok(Itinerary { what, index, whole, begun, left: stretches, legs, number: 0, came })
            }
            _ => Err(Error::invalid(
                "go on with a ride: that is no token of one, or not all of it: give what the ride \
                 printed, from `ride.` to its end",
            )),
        }
    }

    /// What is left, legs that are being ridden included, for [`Itinerary::of_token`]: at any node with
    /// images of this mark, whatever its views' parts.
    pub fn token(&self) -> String {
        self.token_of(None)
    }

    /// The same, with the sums of everything that counts as received, also before a token that this goes on with:
    /// by sub-range, so the token is some kilobytes long.
    pub fn token_with(&self, came: &Sums) -> String {
        self.token_of(Some(Box::new(came.clone())))
    }

    fn token_of(&self, came: Option<Box<Sums>>) -> String {
        let stretches = self.left.iter().chain(self.legs.values().flatten()).cloned().collect();
        let Itinerary { what, index, begun, whole, .. } = *self;
        let (low, high) = (whole.low(), whole.high());
        written(&Left { what, index, begun, low, high, stretches, came })
    }

    /// The sums of what was received before the token that this goes on with, if that says them.
    pub fn came(&self) -> Option<&Sums> {
        self.came.as_deref()
    }

    /// The mark.
    pub fn index(&self) -> Index {
        self.index
    }

    /// All that was asked for at first, what was received before a token included.
    pub fn whole(&self) -> Range {
        self.whole
    }

    /// Whether everything was received.
    pub fn is_over(&self) -> bool {
        self.left.is_empty() && self.legs.is_empty()
    }

    /// Divides what nobody rides for among views that have images of the mark, and counts all of it as
    /// being ridden. Fails, and changes nothing, where none has a part of it.
    pub fn divide(&mut self, candidates: &[Candidate]) -> Result<Vec<Leg>> {
        let mut legs = Vec::new();
        for Stretch { low, high, behind } in &self.left {
            for Chosen { candidate, range } in select(candidates, Range::new(*low, *high))? {
                let behind = behind.clone().filter(|_| range.low() == *low);
                let number = self.number + legs.len() as u64 + 1;
                legs.push(Leg { number, candidate, range, behind });
            }
        }
        self.number += legs.len() as u64;
        self.left.clear();
        for Leg { number, range, behind, .. } in &legs {
            let (low, high, behind) = (range.low(), range.high(), behind.clone());
            self.legs.insert(*number, vec![Stretch { low, high, behind }]);
        }
        Ok(legs)
    }

    /// A leg has begun, on a view of this range, which says what its ride is of. Refuses one of another
    /// entry, or of another log.
    pub fn begun(&mut self, leg: u64, view: Range, boarded: &Boarded) -> Result<()> {
        let said = Begun { entry_crc: boarded.entry_crc, digest: boarded.digest };
        let first = *self.begun.get_or_insert(said);
        if boarded.index != self.index || first != said {
            return Err(Error::corrupt(format!(
                "ride images of entry {}: they are of different logs, or views have applied it otherwise: \
                 `holdfast view verify` compares them",
                self.index
            )));
        }
        let of_leg = self.legs.get_mut(&leg).expect("it is being ridden");
        let [Stretch { low, high, behind }] = &of_leg[..] else { panic!("a leg begins once") };
        let range = Range::new(*low, *high);
        let heads = view.divided(boarded.heads).into_iter();
        let heads = heads.map(|head| head.intersection(range)).filter(|head| !head.is_empty());
        let stretch = |head: Range| Stretch {
            low: head.low(),
            high: head.high(),
            behind: behind.clone().filter(|_| head.low() == *low),
        };
        *of_leg = heads.map(stretch).collect();
        Ok(())
    }

    /// Items of a leg's head were received, and given on, the last of which has this place.
    pub fn received(&mut self, leg: u64, last: Place) {
        let heads = self.legs.get_mut(&leg).expect("it is being ridden");
        let hash = u64::from(last.hash);
        let head = heads.iter_mut().find(|head| head.low <= hash && hash < head.high);
        let head = head.expect("what comes was asked for");
        head.low = hash;
        head.behind = Some(last).filter(|_| !planted!("client.ride-goes-on-at-a-hash"));
    }

    /// All of a leg was received.
    pub fn ended(&mut self, leg: u64) {
        self.legs.remove(&leg);
    }

    /// A leg has broken off: what is left of it is nobody's again.
    pub fn broke(&mut self, leg: u64) {
        self.left.extend(self.legs.remove(&leg).into_iter().flatten());
    }
}

/// A checksum of what is asked for: who goes on with a [`Itinerary::token`] asks for the same. Collections are by
/// their names, with commas.
pub fn what(topic: &str, collections: Option<&str>, asked: &Board) -> u32 {
    let Board { keys_only, versions, since, below, fields, .. } = asked;
    let (since, below) = (since.0, below.map(|below| below.0));
    let what = (topic, collections, keys_only, versions, since, below, fields);
    crc32c(format!("{what:?}").as_bytes())
}

/// A token: hexadecimal digits, with a checksum.
fn written(left: &Left) -> String {
    let mut bytes = left.to_bytes();
    let crc = crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    format!("{TOKEN}{}", to_hex(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_env::{Rng, SeededRng};
    use holdfast_wire::slab::Item;
    use std::collections::BTreeSet;

    fn place(hash: u32, key: u8) -> Place {
        Place { hash, collection: 1, key: vec![key], index: Index(u64::from(key)) }
    }

    /// A view of a part, which has an image of the mark, with so many heads.
    struct View {
        range: Range,
        heads: u32,
    }

    impl View {
        fn boarded(&self) -> Boarded {
            let (heads, index, horizon, front_crc) = (self.heads, Index(7), Index(0), None);
            Boarded { ride: 1, heads, index, entry_crc: 3, digest: 4, horizon, front_crc }
        }

        /// What it sends of a leg: of each head its items behind a place, in order.
        fn sends(&self, leg: &Leg, all: &BTreeSet<Place>) -> Vec<Vec<Place>> {
            let is_sent = |head: Range, item: &Place| {
                head.contains(item.hash)
                    && leg.range.contains(item.hash)
                    && leg.behind.as_ref().is_none_or(|behind| item > behind)
            };
            let of = |head: Range| all.iter().filter(|item| is_sent(head, item)).cloned().collect();
            self.range.divided(self.heads).into_iter().map(of).collect()
        }
    }

    fn views(of: u32, heads: u32) -> Vec<View> {
        (0..of).map(|part| View { range: Range::part(part, of), heads }).collect()
    }

    fn candidates(views: &[View]) -> Vec<Candidate> {
        let one = |view: &View| Candidate { range: view.range, applied: Index(9), is_apart: false };
        views.iter().map(one).collect()
    }

    /// Legs that break anywhere, at views of ever other parts, with tokens taken up in between: each item
    /// comes once.
    #[test]
    fn every_item_comes_once_whoever_breaks_off() {
        let (mut broken, mut tokens) = (0, 0);
        for seed in 0..200 {
            let rng = SeededRng::new(seed);
            let below = |n: u64| rng.next_u64() % n;
            // Few hashes, at the borders of parts, too.
            let hash = |at: u64| match at {
                0..4 => Range::part(at as u32, 4).low() as u32,
                4..8 => (Range::part(at as u32 - 4, 4).high() - 1) as u32,
                _ => rng.next_u64() as u32,
            };
            let items = (0..60).map(|_| place(hash(below(12)), below(250) as u8));
            let all: BTreeSet<Place> = items.collect();
            let wanted = Range::part(below(2) as u32, 2);
            let mut itinerary = Itinerary::new(Index(7), wanted, 9);
            let mut came = Vec::new();
            let mut turn = 0;
            while !itinerary.is_over() {
                turn += 1;
                assert!(turn < 500, "seed {seed}: it comes to no end");
                let views = views(1 + below(6) as u32, 1 + below(3) as u32);
                let legs = itinerary.divide(&candidates(&views)).unwrap();
                for leg in legs {
                    let view = &views[leg.candidate];
                    if below(8) > 0 {
                        itinerary.begun(leg.number, view.range, &view.boarded()).unwrap();
                        let mut heads = view.sends(&leg, &all);
                        let mut patience = below(12);
                        // A slab of some items, of any head that has some.
                        while let Some(at) = (0..heads.len()).find(|at| !heads[*at].is_empty()) {
                            let any = below(heads.len() as u64) as usize;
                            let at = if heads[any].is_empty() { at } else { any };
                            if patience == 0 {
                                break;
                            }
                            patience -= 1;
                            let slab = 1 + below(3).min(heads[at].len() as u64 - 1) as usize;
                            let slab: Vec<Place> = heads[at].drain(..slab).collect();
                            let last = slab.last().unwrap().clone();
                            came.extend(slab);
                            itinerary.received(leg.number, last);
                        }
                        if heads.iter().all(Vec::is_empty) {
                            itinerary.ended(leg.number);
                            continue;
                        }
                    }
                    broken += 1;
                    if below(3) == 0 {
                        // As if the process had ended here.
                        tokens += 1;
                        itinerary = Itinerary::of_token(&itinerary.token(), 9).unwrap();
                        assert_eq!(itinerary.whole(), wanted);
                        break;
                    }
                    itinerary.broke(leg.number);
                }
            }
            let mut once: Vec<Place> = came.clone();
            once.sort();
            let model = all.iter().filter(|item| wanted.contains(item.hash)).cloned();
            assert_eq!(once, model.collect::<Vec<_>>(), "seed {seed}");
        }
        assert!(broken > 500 && tokens > 200, "{broken} broke off, {tokens} tokens");
    }

    #[test]
    fn images_of_another_log_are_refused_and_nobody_may_lack_a_part() {
        let mut itinerary = Itinerary::new(Index(7), Range::ALL, 9);
        let views = views(2, 1);
        assert!(itinerary.divide(&candidates(&views)[..1]).is_err());
        let legs = itinerary.divide(&candidates(&views)).unwrap();
        let boarded = views[0].boarded();
        itinerary.begun(legs[0].number, views[0].range, &boarded).unwrap();
        for other in [
            Boarded { index: Index(8), ..boarded },
            Boarded { entry_crc: 1, ..boarded },
            Boarded { digest: 1, ..boarded },
        ] {
            let refused = itinerary.begun(legs[1].number, views[1].range, &other);
            assert!(refused.is_err(), "{other:?}");
        }
        // Also by who goes on with a token.
        let mut itinerary = Itinerary::of_token(&itinerary.token(), 9).unwrap();
        let legs = itinerary.divide(&candidates(&views)).unwrap();
        let other = Boarded { digest: 1, ..boarded };
        assert!(itinerary.begun(legs[0].number, views[0].range, &other).is_err());
    }

    /// Who goes on has the sums of what came before, and no bit of them is believed that is not as it was told.
    #[test]
    fn a_token_takes_the_sums_of_what_came_along() {
        let item = |hash, index| Item { hash, collection: 1, key: b"k", index, value: Some(b"v") };
        let (mut itinerary, mut came) = (Itinerary::new(Index(7), Range::ALL, 9), Sums::default());
        assert_eq!(Itinerary::of_token(&itinerary.token(), 9).unwrap().came(), None);
        for turn in 0..4u32 {
            came.add(&item(turn << 30, 3), true);
            let token = itinerary.token_with(&came);
            itinerary = Itinerary::of_token(&token, 9).unwrap();
            assert_eq!(itinerary.came(), Some(&came), "turn {turn}");
            assert!(Itinerary::of_token(&token[..token.len() - 2], 9).is_err());
        }
        // Who sums up nothing has none to tell.
        assert_eq!(Itinerary::of_token(&itinerary.token(), 9).unwrap().came(), None);
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let token = Itinerary::new(Index(7), Range::ALL, 9).token();
        assert!(Itinerary::of_token(&format!("{token}\n"), 9).is_ok());
        assert!(Itinerary::of_token(&token, 8).unwrap_err().message.contains("other options"));
        for wrong in ["", "ride.", "ride.zz", &token[1..], &token[..token.len() - 2], "ride.ü"] {
            assert!(Itinerary::of_token(wrong, 9).is_err(), "{wrong}");
        }
        // One with any digit changed was taken, and lost items.
        for at in TOKEN.len()..token.len() {
            let other = if &token[at..=at] == "7" { "8" } else { "7" };
            let edited = format!("{}{other}{}", &token[..at], &token[at + 1..]);
            assert!(Itinerary::of_token(&edited, 9).is_err(), "{edited}");
        }
        for (stretch, high, is_sound) in [
            (Stretch { low: 5, high: 9, behind: Some(place(5, 1)) }, 9, true),
            (Stretch { low: 5, high: 9, behind: Some(place(6, 1)) }, 9, false),
            (Stretch { low: 5, high: 9, behind: None }, 8, false),
            (Stretch { low: 9, high: 9, behind: None }, 9, false),
            (Stretch { low: 4, high: 5, behind: None }, 9, false),
            (Stretch { low: 5, high: 9, behind: None }, (1 << 32) + 1, false),
        ] {
            let told = format!("{stretch:?} up to {high}");
            let (low, stretches) = (5, vec![stretch]);
            let (what, index, begun, came) = (9, Index(7), None, None);
            let token = written(&Left { what, index, begun, low, high, stretches, came });
            assert_eq!(Itinerary::of_token(&token, 9).is_ok(), is_sound, "{told}");
        }
    }
}
