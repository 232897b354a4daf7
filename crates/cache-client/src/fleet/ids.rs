//! Which request a datagram's id belongs to. Ids count up, so that one comes again as late as
//! possible: an answer that was given up long ago must not be taken for another's.

/// Requests outstanding over UDP at one server.
const OUTSTANDING_MAX: usize = 4096;
const NOTHING: (u16, u32) = (0, u32::MAX);

/// A table with a place for each id modulo its length.
#[derive(Default)]
pub struct Ids {
    places: Vec<(u16, u32)>,
    /// By the same places: what was given up, and when it had been sent.
    given_up: Vec<Option<(u16, u64)>>,
    used: usize,
    next: u16,
}

impl Ids {
    pub fn is_full(&self) -> bool {
        self.used >= OUTSTANDING_MAX
    }

    /// A new id for the request in `slot`.
    pub fn take(&mut self, slot: u32) -> u16 {
        // At least half is free, so that a free place is near.
        if self.used * 2 >= self.places.len() {
            self.grow();
        }
        let mask = self.places.len() - 1;
        while self.places[usize::from(self.next) & mask].1 != u32::MAX {
            self.next = self.next.wrapping_add(1);
        }
        let id = self.next;
        self.places[usize::from(id) & mask] = (id, slot);
        self.given_up[usize::from(id) & mask] = None;
        self.used += 1;
        self.next = id.wrapping_add(1);
        id
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.places);
        self.places = vec![NOTHING; (old.len() * 2).max(16)];
        self.given_up.resize(self.places.len(), None);
        let mask = self.places.len() - 1;
        // Two ids that had different places have different ones in a longer table, too.
        for place in old.into_iter().filter(|place| place.1 != u32::MAX) {
            self.places[usize::from(place.0) & mask] = place;
        }
    }

    pub fn find(&self, id: u16) -> Option<u32> {
        let mask = self.places.len().checked_sub(1)?;
        let place = self.places[usize::from(id) & mask];
        (place.0 == id && place.1 != u32::MAX).then_some(place.1)
    }

    pub fn give_back(&mut self, id: u16, slot: u32) {
        if self.find(id) == Some(slot) {
            let mask = self.places.len() - 1;
            self.places[usize::from(id) & mask] = NOTHING;
            self.used -= 1;
        }
    }

    /// Nobody waits for the answer any longer; one that comes all the same is known by its id, as
    /// long as no other request takes its place.
    pub fn give_up(&mut self, id: u16, slot: u32, sent_ns: u64) {
        self.give_back(id, slot);
        let mask = self.places.len() - 1;
        self.given_up[usize::from(id) & mask] = Some((id, sent_ns));
    }

    /// When a request had been sent whose answer comes now, after it was given up. Only once.
    pub fn take_late(&mut self, id: u16) -> Option<u64> {
        let mask = self.places.len().checked_sub(1)?;
        let place = &mut self.given_up[usize::from(id) & mask];
        place.take_if(|(of, _)| *of == id).map(|(_, sent_ns)| sent_ns)
    }

    pub fn slots(&self) -> Vec<u32> {
        self.places.iter().map(|place| place.1).filter(|slot| *slot != u32::MAX).collect()
    }
}

const _: () = assert!(OUTSTANDING_MAX * 2 <= 1 << 16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_comes_again_only_after_all_others() {
        let mut ids = Ids::default();
        let held = ids.take(7);
        let mut last = held;
        for _ in 0..0x1_0000 - 1 {
            let id = ids.take(8);
            assert_ne!(id, held);
            assert_ne!(id, last);
            assert_eq!((ids.find(id), ids.find(held)), (Some(8), Some(7)));
            ids.give_back(id, 9);
            assert_eq!(ids.find(id), Some(8), "another's is not given back");
            ids.give_back(id, 8);
            assert_eq!(ids.find(id), None);
            last = id;
        }
    }

    #[test]
    fn what_was_given_up_is_known_once_and_until_its_place_is_taken() {
        let mut ids = Ids::default();
        let (first, second) = (ids.take(1), ids.take(2));
        ids.give_up(first, 1, 77);
        ids.give_up(second, 2, 88);
        assert_eq!(
            (ids.find(first), ids.take_late(first), ids.take_late(first)),
            (None, Some(77), None)
        );
        assert_eq!(ids.take_late(second ^ 0x8000), None);
        for _ in 0..16 {
            let id = ids.take(3);
            ids.give_back(id, 3);
        }
        assert_eq!(ids.take_late(second), None, "another's answer is not taken for it");
    }

    #[test]
    fn as_many_as_there_may_be_have_ids_of_their_own() {
        let mut ids = Ids::default();
        assert_eq!(ids.find(0), None);
        let all: Vec<u16> = (0..OUTSTANDING_MAX as u32).map(|slot| ids.take(slot)).collect();
        assert!(ids.is_full());
        for (slot, id) in all.iter().enumerate() {
            assert_eq!(ids.find(*id), Some(slot as u32));
        }
        assert_eq!(ids.slots().len(), OUTSTANDING_MAX);
    }
}
