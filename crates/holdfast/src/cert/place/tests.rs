//! The power fails at every step of every change, and each sync is left out in turn: files are
//! whole, whoever was trusted is, and the same command again puts right what was left.

use super::*;
use holdfast_base::Kind;
use holdfast_cert::{Wanted, key_fits, new_authority};
use holdfast_sim::SimDisk;

const DIR: &str = "/tls";
const LEAF: &str = "/tls/n1.pem";
const NOW: i64 = 1_800_000_000;
/// More steps than any change has.
const STEPS_MAX: u64 = 40;
/// Outcomes of each power cut that are looked at.
const CUTS: u64 = 6;

fn place(disk: &SimDisk) -> Place<'_> {
    Place::open(disk, Path::new(DIR)).unwrap()
}

fn issue(authority: &Authority) -> Issued {
    let wanted = Wanted::node("prod", "n1", &["n1.example".to_owned()]).unwrap();
    authority.issue(&wanted, None, NOW, [2; 16]).unwrap()
}

/// A CA and a node's certificate.
fn disk() -> SimDisk {
    let disk = SimDisk::new(1);
    disk.create_dir_all(Path::new(DIR)).unwrap();
    let place = place(&disk);
    place.init(&new_authority("prod", 3650, NOW, [1; 16]).unwrap()).unwrap();
    place.add("n1", &issue(&place.authority().unwrap())).unwrap();
    drop(place);
    disk
}

fn fits(disk: &SimDisk) -> bool {
    let place = place(disk);
    let certificate = place.certificate(Path::new(LEAF)).unwrap();
    let key = place.read(Path::new("/tls/n1.key")).unwrap();
    key_fits(&certificate, &key).unwrap()
}

fn renew_leaf(disk: &SimDisk) -> Result<()> {
    let place = place(disk);
    place.replace(Path::new(LEAF), &issue(&place.authority()?))
}

fn renew_ca(disk: &SimDisk) -> Result<()> {
    let place = place(disk);
    let (issued, bundle) = place.authority()?.renew(None, NOW, [3; 16])?;
    place.renew_authority(&issued, &bundle)
}

fn forget_old(disk: &SimDisk) -> Result<()> {
    place(disk).forget_old()
}

/// Runs `change` with the power failing at each of its steps, and shows what each cut leaves.
/// Answers how many steps there were.
fn at_each_step(
    prepare: impl Fn() -> SimDisk,
    change: impl Fn(&SimDisk) -> Result<()>,
    look: impl Fn(&SimDisk),
) -> u64 {
    for step in 0..STEPS_MAX {
        let disk = prepare();
        disk.crash_at(disk.operations() + step);
        match change(&disk) {
            Ok(()) if !disk.crashed() => {
                look(&disk.power_cut_losing_all());
                return step;
            }
            // The last thing that a change does, to tidy up, may be what fails.
            Ok(()) => {}
            Err(e) => assert!(disk.crashed(), "{e}"),
        }
        look(&disk.power_cut_losing_all());
        for seed in 0..CUTS {
            look(&disk.power_cut(seed));
        }
        look(&disk.process_kill());
    }
    panic!("it has more than {STEPS_MAX} steps");
}

#[test]
fn a_certificate_that_is_renewed_is_whole_at_every_moment_and_can_be_renewed_again() {
    let steps = at_each_step(disk, renew_leaf, |disk| {
        // Both can be read, whether they fit or not.
        let fitted = fits(disk);
        place(disk).authority().unwrap();
        renew_leaf(disk).unwrap();
        assert!(fits(disk), "fitted: {fitted}");
    });
    assert!(steps >= 8, "{steps}");
}

#[test]
fn a_new_certificate_is_there_whole_or_can_be_made_when_its_rest_is_removed() {
    let prepare = || {
        let disk = SimDisk::new(1);
        disk.create_dir_all(Path::new(DIR)).unwrap();
        place(&disk).init(&new_authority("prod", 3650, NOW, [1; 16]).unwrap()).unwrap();
        disk
    };
    let add = |disk: &SimDisk| {
        let place = place(disk);
        place.add("n1", &issue(&place.authority()?))
    };
    at_each_step(prepare, add, |disk| {
        if let Err(e) = add(disk) {
            assert_eq!(e.kind, Kind::Exists, "{e}");
            for rest in [LEAF, "/tls/n1.key"] {
                let _ = disk.remove(Path::new(rest));
            }
            add(disk).unwrap();
        }
        assert!(fits(disk));
    });
}

#[test]
fn whoever_was_trusted_is_while_the_ca_is_renewed_and_the_command_can_be_repeated() {
    let steps = at_each_step(disk, renew_ca, |disk| {
        let leaf = place(disk).certificate(Path::new(LEAF)).unwrap();
        assert!(place(disk).authority().unwrap().knows(&leaf));
        match renew_ca(disk) {
            Ok(()) => {}
            Err(e) => assert!(e.kind == Kind::Exists && e.message.contains("--forget-old"), "{e}"),
        }
        let authority = place(disk).authority().unwrap();
        assert_eq!(authority.bundle().certificates().len(), 2);
        assert_eq!(authority.own().subject, authority.bundle().first().subject);
        assert!(authority.knows(&leaf));
        let refused = forget_old(disk).expect_err("the leaf is of the old CA");
        assert!(refused.message.contains("`/tls/n1.pem`"), "{refused}");
        renew_leaf(disk).unwrap();
        forget_old(disk).unwrap();
        let authority = place(disk).authority().unwrap();
        assert!(authority.knows(&place(disk).certificate(Path::new(LEAF)).unwrap()));
        assert_eq!(authority.bundle().certificates().len(), 1);
        assert!(!disk.exists(Path::new("/tls/ca.key.old")).unwrap());
    });
    assert!(steps >= 14, "{steps}");
}

#[test]
fn forgetting_the_old_ca_can_be_repeated() {
    let prepare = || {
        let disk = disk();
        renew_ca(&disk).unwrap();
        renew_leaf(&disk).unwrap();
        disk
    };
    at_each_step(prepare, forget_old, |disk| {
        match forget_old(disk) {
            Ok(()) => {}
            Err(e) => assert_eq!(e.kind, Kind::NotFound, "{e}"),
        }
        let authority = place(disk).authority().unwrap();
        assert_eq!(authority.bundle().certificates().len(), 1);
        assert!(authority.knows(&place(disk).certificate(Path::new(LEAF)).unwrap()));
        assert!(!disk.exists(Path::new("/tls/ca.key.old")).unwrap());
        let refused = forget_old(disk).expect_err("there is no old one");
        assert_eq!(refused.kind, Kind::NotFound, "{refused}");
    });
}

#[test]
fn each_sync_is_needed() {
    for site in [DATA_SITE, NAME_SITE] {
        let disk = disk();
        let before = place(&disk).certificate(Path::new(LEAF)).unwrap();
        disk.disable_site(site);
        renew_leaf(&disk).unwrap();
        let cut = disk.power_cut_losing_all();
        let after = place(&cut).certificate(Path::new(LEAF));
        let is_new = after.is_ok_and(|after| after.der() != before.der());
        assert!(!is_new, "without {site} nothing was lost");
    }
    let disk = disk();
    let before = place(&disk).certificate(Path::new(LEAF)).unwrap();
    renew_leaf(&disk).unwrap();
    let cut = disk.power_cut_losing_all();
    assert_ne!(place(&cut).certificate(Path::new(LEAF)).unwrap().der(), before.der());
}

#[test]
fn a_full_disk_changes_nothing_and_leaves_nothing() {
    let disk = disk();
    let before = disk.list(Path::new(DIR)).unwrap();
    disk.set_capacity(0);
    for change in [renew_leaf, renew_ca] {
        let refused = change(&disk).expect_err("no room");
        assert_eq!(refused.kind, Kind::Full, "{refused}");
        assert_eq!(disk.list(Path::new(DIR)).unwrap(), before);
        assert!(fits(&disk));
    }
}

#[test]
fn two_commands_do_not_change_one_directory_at_once() {
    let disk = disk();
    let _first = place(&disk);
    let refused = Place::open(&disk, Path::new(DIR)).err().expect("it is locked");
    assert!(
        refused.kind == Kind::Retry && refused.message.contains("another command"),
        "{refused}"
    );
}
