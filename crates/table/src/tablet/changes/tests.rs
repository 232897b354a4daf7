use super::*;
use crate::entry::{Asked, Body, Change, ChangeKind, Entry, StreamEntry};
use crate::ids::{Place, RegionId};
use crate::tablet::Form;
use holdfast_base::codec::Encode;
use holdfast_env::trial::Trial;

fn tablet() -> Tablet {
    let form = Form::new(Mode::Timeline, 1);
    Tablet::made(&form, RegionId(0), form.members[0].log)
}

/// The next write, by a client.
fn put(tablet: &mut Tablet, session: u64, key: &str, value: &[u8]) {
    let change = change(tablet, key, value);
    decide(tablet, session, Body::Change(change));
}

fn change(tablet: &Tablet, key: &str, value: &[u8]) -> Change {
    let version = tablet.record(key.as_bytes()).map_or(1, |record| record.version + 1);
    Change {
        key: key.as_bytes().to_vec(),
        version,
        after: version - 1,
        home: StreamId(0),
        origin: RegionId(0),
        kind: ChangeKind::Put(value.into()),
    }
}

fn decide(tablet: &mut Tablet, session: u64, body: Body) {
    let (stream, index) = (StreamId(0), tablet.applied() + 1);
    let tail = tablet.stream(stream).tail();
    let entry = StreamEntry {
        place: Place::new(stream.first_epoch(), tail.number + 1),
        before: tail.epoch,
        asked: Some(Asked { session, sequence: index, below: index }),
        body,
    };
    let entry = Entry::Decided { stream, entry }.to_bytes();
    tablet.apply(index, &entry, &mut Vec::new()).unwrap();
}

fn keys(steps: Option<Steps>) -> Option<Vec<String>> {
    let key = |change: RowChange| String::from_utf8(change.key).unwrap();
    Some(steps?.changes.into_iter().map(key).collect())
}

/// A place between two records of a group would be one that no stream ever showed: who goes on from there at another
/// start would be told nothing of the second.
#[test]
fn a_group_is_one_step_with_all_of_its_records() {
    let mut tablet = tablet();
    let begin = tablet.changes_now();
    put(&mut tablet, 1, "a", b"one");
    let group = ["a", "b", "c"].map(|key| change(&tablet, key, b"two"));
    decide(&mut tablet, 1, Body::Group(group.to_vec()));
    let first = tablet.changes_behind(begin.next, 1, 1).unwrap();
    assert_eq!(keys(tablet.changes_behind(begin.next, 1, 1)), Some(vec!["a".into()]));
    let group = tablet.changes_behind(first.at.next, 1, 1);
    assert_eq!(keys(group.clone()), Some(vec!["a".into(), "b".into(), "c".into()]));
    assert_eq!(group.unwrap().at, tablet.changes_now());
}

#[test]
fn steps_have_the_record_before_and_after_and_are_told_in_parts() {
    let mut tablet = tablet();
    let begin = tablet.changes_now();
    put(&mut tablet, 1, "a", b"one");
    put(&mut tablet, 1, "a", b"two");
    put(&mut tablet, 1, "b", b"one");
    let steps = tablet.changes_behind(begin.next, 2, 1 << 20).unwrap();
    assert!(steps.is_cut);
    let values = |change: &RowChange| {
        [&change.before, &change.after].map(|value| value.as_ref().map(|value| value.to_vec()))
    };
    assert_eq!(values(&steps.changes[0]), [None, Some(b"one".to_vec())]);
    assert_eq!(values(&steps.changes[1]), [Some(b"one".to_vec()), Some(b"two".to_vec())]);
    assert_eq!(steps.at.seen[0].1.place.number, 2);
    let rest = tablet.changes_behind(steps.at.next, 2, 1 << 20).unwrap();
    assert_eq!((rest.changes.len(), rest.is_cut, &rest.at), (1, false, &tablet.changes_now()));
    // One step, however large; and no place in front or behind of all.
    assert_eq!(tablet.changes_behind(begin.next, 9, 1).unwrap().changes.len(), 1);
    assert_eq!(tablet.changes_behind(rest.at.next + 1, 9, 1), None);
    assert_eq!(tablet.changes_behind(begin.next - 1, 9, 1), None);
}

/// What has shown once stayed for ever; and who asked for what is gone was told the rest.
#[test]
fn steps_are_kept_up_to_so_many_bytes() {
    let _entered = Trial::new().with(&KEPT_BYTES, 1000).enter();
    let mut tablet = tablet();
    let begin = tablet.changes_now();
    for number in 0..40 {
        put(&mut tablet, 1, &format!("k{number}"), &[7; 100]);
    }
    assert!(tablet.changes.bytes <= 1000 && tablet.changes.steps.len() > 2);
    assert_eq!(tablet.changes_behind(begin.next, 100, 1 << 20), None);
    let first = tablet.changes.first;
    let left = keys(tablet.changes_behind(first, 100, 1 << 20)).unwrap();
    assert_eq!(left.last().unwrap(), "k39");
    assert_eq!(left.len() as u64, tablet.changes_now().next - first);
    // The last step stays, however large.
    put(&mut tablet, 1, "large", &[7; 5000]);
    let now = tablet.changes_now().next;
    assert_eq!(keys(tablet.changes_behind(now - 1, 9, 1)).unwrap(), ["large"]);
}

/// The same tablet in another process, and one that another table of the same words has.
#[test]
fn a_place_is_known_by_another_start_and_not_by_another_table() {
    let (mut first, mut again, mut other) = (tablet(), tablet(), tablet());
    let none = first.changes_now();
    for number in 0..5 {
        for (tablet, session) in [(&mut first, 1), (&mut again, 1), (&mut other, 2)] {
            put(tablet, session, &format!("k{number}"), b"v");
        }
    }
    let place = first.changes_now();
    put(&mut again, 1, "k5", b"v");
    let next = again.changes_resume(&place.seen).unwrap();
    assert!(keys(again.changes_behind(next, 9, 1 << 20)).unwrap().contains(&"k5".to_owned()));
    assert_eq!(other.changes_resume(&place.seen), None, "another table's history");
    assert_eq!(again.changes_resume(&none.seen), None, "nothing says whose it is");
    assert_eq!(again.changes_resume(&[]), None);
    // Its log has lost its end.
    assert_eq!(first.changes_resume(&again.changes_now().seen), None);
    again.changes.begin_anew(&again.shown.clone());
    assert_eq!(again.changes_resume(&place.seen), None, "a step behind it is gone");
    assert!(again.changes_resume(&again.changes_now().seen).is_some());
}

/// Found by halves, and the same as by walking through all.
#[test]
fn a_place_between_steps_is_found_whatever_was_forgotten() {
    let _entered = Trial::new().with(&KEPT_BYTES, 3000).enter();
    let form = Form::new(Mode::Timeline, 3);
    let mut tablet = Tablet::made(&form, RegionId(0), form.members[0].log);
    let streams = [0, 1, 2].map(StreamId);
    // In front of each step, from the first one on, which has number 1.
    let mut shown = vec![tablet.shown.clone()];
    let mut numbers = [0; 3];
    for step in 0..60usize {
        // One of them is quiet for long.
        let of = if step < 40 { step * step % 2 } else { step % 3 };
        numbers[of] += 1;
        let place = Place::new(streams[of].first_epoch(), numbers[of]);
        tablet.changes.push(streams[of], Shown { place, digest: step as u64 }, Vec::new());
        let mut now = shown[step].clone();
        now.insert(streams[of], Shown { place, digest: step as u64 });
        shown.push(now);
        let (first, next) = (tablet.changes.first, tablet.changes.next());
        for number in first..=next {
            let walked = &shown[number as usize - 1];
            assert_eq!(tablet.changes.seen_at(number), *walked, "{number} of {first} to {next}");
        }
        let floor = &tablet.changes.floor;
        for (stream, last) in &shown[step + 1] {
            for number in 0..=last.place.number + 1 {
                let known = shown.iter().map(|all| all[stream]).find(|s| s.place.number == number);
                let known = known.filter(|_| number >= floor[stream].place.number);
                assert_eq!(tablet.changes.shown_at(*stream, number), known, "{stream:?} {number}");
            }
        }
    }
    assert!(tablet.changes.first > 30, "{}", tablet.changes.first);
}

/// A table that nobody followed kept the values before and after its last writes all the same, of each tablet.
#[test]
fn nothing_is_kept_for_nobody() {
    let _entered = Trial::new().with(&GRACE_TICKS, 3).enter();
    let (mut tablet, mut followed) = (tablet(), tablet());
    let _ = followed.changes_now();
    fn kept(tablet: &mut Tablet, key: &str) -> (usize, bool) {
        put(tablet, 1, key, b"v");
        (tablet.changes.steps.len(), tablet.changes.bytes > 0)
    }
    for ticks in 1..=4 {
        let key = format!("k{ticks}");
        let expected = if ticks < 4 { (ticks, true) } else { (0, false) };
        assert_eq!(kept(&mut tablet, &key), expected, "{ticks}");
        assert_eq!(kept(&mut followed, &key), (ticks, true));
        tablet.changes_tick();
        followed.changes_tick();
    }
    // Whoever was there before all that begins anew, and from there on all is kept.
    let place = followed.changes_now();
    assert!(tablet.changes_resume(&place.seen).is_some(), "nothing has shown since");
    assert_eq!(kept(&mut tablet, "k5"), (1, true));
    let begin = tablet.changes_now();
    for ticks in 0..9 {
        assert_eq!(kept(&mut tablet, "k6"), (ticks + 2, true));
        tablet.changes_tick();
    }
    let told = keys(tablet.changes_behind(begin.next, 100, 1 << 20)).unwrap();
    assert_eq!(told.len(), 9);
    assert_eq!(tablet.changes_behind(begin.next - 2, 100, 1 << 20), None, "it is gone");
}

/// A table with one tablet was split, and the half that left, too, before anybody asked: the half of the half has shown
/// what followed on changes of the half, which nobody has been told of yet.
#[test]
fn a_half_of_a_half_is_followed_once_the_half_is() {
    let parents = [None, Some(0), Some(1), Some(0)];
    let told = |followed, is_all| {
        let behind = |number| Ok::<_, ()>((number, is_all));
        follow(followed, parents.len(), behind, |number| parents[number], Ok).unwrap()
    };
    assert_eq!(told(1, false), [0]);
    // Numbers are places in the answer: whoever is behind one that waits waits, too.
    assert_eq!(told(1, true), [0, 1]);
    assert_eq!(told(2, false), [0, 1]);
    assert_eq!(told(2, true), [0, 1, 2, 3]);
}
