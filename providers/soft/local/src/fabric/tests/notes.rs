//! Tests of notes: the texts that processes publish. Several fabrics of the test process write and
//! read notes in one directory.

use super::*;
use crate::fabric::notes::MAX_NOTE_LEN;

#[test]
fn a_note_is_read_by_others_until_its_writer_leaves() {
    let place = TestDirectory::new();
    let ((one, _), (other, _)) = (place.join(), place.join());
    assert_eq!(other.note_of(one.slot()), None);
    for text in [&b"a longer note"[..], b"short"] {
        one.publish_note(text).unwrap();
        assert_eq!(other.note_of(one.slot()).as_deref(), Some(text));
    }
    let quiet = wait_for_quiet(&other);
    assert_eq!(other.last_change(), Some(quiet));
    one.publish_note(b"something else").unwrap();
    assert_ne!(other.last_change(), Some(quiet));
    let quiet = wait_for_quiet(&other);
    let (third, _) = place.join();
    assert_ne!(other.last_change(), Some(quiet));
    third.leave();
    let slot = one.slot();
    one.leave();
    assert_eq!(other.note_of(slot), None);
    other.leave();
    assert!(place.is_clean());
}

fn wait_for_quiet(fabric: &Fabric) -> Stamp {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        if let Some(stamp) = fabric.last_change() {
            return stamp;
        }
        assert!(Instant::now() < deadline, "nothing changes any more");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_invalid_note_file_reads_as_no_note() {
    let place = TestDirectory::new();
    let (fabric, _) = place.join();
    let file = |name: &str| fabric.directory().join(name);
    std::fs::write(file("50.gids"), vec![0; MAX_NOTE_LEN + 1]).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", file("51.gids")).unwrap();
    std::fs::create_dir(file("52.gids")).unwrap();
    let pipe = file("53.gids");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()));
    for slot in 50..=54 {
        assert_eq!(fabric.note_of(slot), None, "{slot}");
    }
    std::fs::remove_dir(file("52.gids")).unwrap();
    // Files of unowned slots are removed with the last process.
    fabric.leave();
    assert!(place.is_clean());
}
