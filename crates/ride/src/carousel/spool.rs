//! Images. The writer of a spin's image sits on every head from the first slab on, and is never
//! moved: if it cannot keep up, or fails, the image is given up, and riders go on.

use super::head::Who;
use super::terms::{Effect, SpinId};
use super::{Carousel, Ground, Image, Spool, Stream};
use holdfast_base::Result;
use holdfast_base::ids::Index;
use holdfast_env::sometimes;

impl Carousel {
    pub(super) fn want_image(&mut self, index: Index) {
        assert!(!self.images.contains_key(&index), "an image is made once");
        if let Some(earlier) = self.due.replace(index) {
            assert_ne!(earlier, index, "an image is made once");
            self.effects.push_back(Effect::Remove { image: earlier });
        }
        self.stir.doors = true;
    }

    /// A slab is in the image, or could not be written.
    pub(super) fn written(&mut self, spin: SpinId, head: usize, result: Result<()>) {
        let Some(open) = self.spins.get_mut(&spin) else { return };
        if open.spool != Spool::Writing {
            // It was given up meanwhile.
            return;
        }
        if result.is_err() {
            return self.give_up_image(spin);
        }
        let laps = &mut open.heads[head];
        laps.written += 1;
        if let Some(seat) = laps.seat_mut(Who::Image) {
            seat.requests += 1;
        }
        self.stir.heads.insert((spin, head));
        let is_written = |head: &super::Head| head.slabs() == Some(head.written);
        if open.heads.iter().all(is_written) {
            open.spool = Spool::Sealing;
            self.effects.push_back(Effect::Seal { spin });
        }
    }

    pub(super) fn image_sealed(&mut self, spin: SpinId, result: Result<()>) {
        let open = self.spins.get_mut(&spin).expect("an image that is being sealed holds its spin");
        assert_eq!(open.spool, Spool::Sealing, "an image is sealed once");
        if result.is_err() {
            return self.give_up_image(spin);
        }
        open.spool = Spool::Whole;
        let image = open.image.expect("what is sealed has an index");
        self.images.insert(image, Image::Whole);
        self.stir.spins.insert(spin);
        for rider in self.spins[&spin].riders.clone() {
            self.step_over(rider);
        }
    }

    /// Goes on without the image.
    pub(super) fn give_up_image(&mut self, spin: SpinId) {
        sometimes!("an image was given up");
        let open = self.spins.get_mut(&spin).expect("a writer holds its spin");
        assert!(matches!(open.spool, Spool::Writing | Spool::Sealing), "it was being written");
        open.spool = Spool::None;
        self.effects.push_back(Effect::Abandon { spin });
        let image = open.image.expect("what is written has an index");
        self.images.insert(image, Image::Going);
        self.stir.images.insert(image);
        for head in 0..self.heads.len() {
            if self.spins[&spin].heads[head].seats.iter().any(|seat| seat.who == Who::Image) {
                self.take_seat(spin, head, Who::Image);
            }
        }
        self.stir.spins.insert(spin);
        self.stir_readers(spin);
    }

    /// Whoever reads by itself on this spin may have something else to read from now.
    fn stir_readers(&mut self, spin: SpinId) {
        for rider in &self.spins[&spin].riders {
            for (head, stream) in &self.riders[rider].streams {
                if matches!(stream, Stream::Private(_)) {
                    self.stir.streams.insert((*rider, *head));
                }
            }
        }
    }

    pub(super) fn retire_image(&mut self, index: Index) {
        let before = self.images.insert(index, Image::Going);
        assert_eq!(before, Some(Image::Whole), "what is retired is whole");
        let from = |spin: &super::Spin| spin.image == Some(index) && spin.spool == Spool::Whole;
        let spins = self.spins.iter().filter(|(_, spin)| from(spin)).map(|(id, _)| *id);
        for spin in spins.collect::<Vec<_>>() {
            // Its riders have the snapshot.
            self.spins.get_mut(&spin).expect("it was just found").spool = Spool::None;
            self.stir_readers(spin);
        }
        self.stir.images.insert(index);
    }

    /// An image goes when its last reader has gone.
    pub(super) fn remove_image(&mut self, image: Index) {
        if self.images.get(&image) != Some(&Image::Going) {
            return;
        }
        let reads = |source| source == super::Source::Image(image);
        let is_read = self.scans.values().any(|scan| reads(scan.source))
            || self.riders.values().any(|rider| rider.ground == Ground::Image(image));
        if !is_read {
            self.images.remove(&image);
            self.effects.push_back(Effect::Remove { image });
        }
    }
}
