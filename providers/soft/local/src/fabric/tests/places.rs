//! Tests of fabric directories: which directories work, and which errors the others cause. They
//! change permissions, owners and links of a directory before a process joins.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::Path,
};

use super::{
    child::{Child, is_root, join_command, open_up},
    *,
};

/// The one line of the error with which joining fails.
fn failure(config: &FabricConfig) -> String {
    let recorder = Arc::new(Recorder::default());
    let error = Fabric::join(config.clone(), LEN, LEN, recorder).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

fn inner(config: &FabricConfig) -> PathBuf {
    let namespace = fs::metadata("/proc/self/ns/net").unwrap();
    config.dir.join(format!("net-{}", std::os::unix::fs::MetadataExt::ino(&namespace)))
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn created_files_are_private_under_any_umask() {
    let place = TestDirectory::new();
    let (fabric, _) = place.join();
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(fabric.directory(), inner(&place.config()));
    assert_eq!(mode(&place.config().dir), 0o700);
    assert_eq!(mode(fabric.directory()), 0o700);
    for name in names(&fabric) {
        assert_eq!(mode(&fabric.directory().join(name)), 0o600);
    }
}

#[test]
fn a_directory_of_the_users_own_is_kept() {
    let place = TestDirectory::new();
    let config = FabricConfig { dir_is_ours: false, ..place.config() };
    fs::create_dir(&config.dir).unwrap();
    set_mode(&config.dir, 0o755);
    let (fabric, _) = join(config.clone());
    fabric.leave();
    assert!(fs::read_dir(&config.dir).unwrap().next().is_none());
}

#[test]
fn a_path_may_be_long() {
    let place = TestDirectory::new();
    let config = FabricConfig { dir: place.0.join("x".repeat(200)), ..place.config() };
    let (one, _) = join(config.clone());
    let (two, _) = join(config);
    assert!(one.peer(two.slot()).is_ok());
    one.leave();
    two.leave();
    assert!(place.is_clean());
}

#[test]
fn when_all_slots_are_taken_joining_fails_with_that_reason() {
    let place = TestDirectory::new();
    let config = FabricConfig { slots: 3, ..place.config() };
    let (one, _) = join(config.clone());
    let (two, _) = join(config.clone());
    let expected = format!(
        "{}: all 2 slots are taken by running processes; end some of them",
        inner(&config).display()
    );
    assert_eq!(failure(&config), expected);
    assert_eq!(names(&one), ["1.sock", "2.sock", "slots"]);
    two.leave();
    let (three, _) = join(config);
    assert_eq!(three.slot(), 2);
    let none = FabricConfig { slots: 1, ..place.config() };
    assert_eq!(failure(&none), "1 fabric slots; at least 2 are needed");
}

#[test]
fn a_file_at_the_directorys_path_is_named_in_the_error() {
    let place = TestDirectory::new();
    let config = place.config();
    fs::write(&config.dir, "").unwrap();
    let expected = |path: &Path| {
        format!("{}: is not a directory; remove it, or set FERROVERBS_FABRIC_DIR", path.display())
    };
    assert_eq!(failure(&config), expected(&config.dir));
    fs::remove_file(&config.dir).unwrap();
    fs::create_dir(&config.dir).unwrap();
    fs::write(inner(&config), "").unwrap();
    assert_eq!(failure(&config), expected(&inner(&config)));
}

#[test]
fn a_link_is_not_followed_where_anyone_could_have_put_it() {
    let place = TestDirectory::new();
    let config = place.config();
    let target = place.0.join("target");
    fs::create_dir(&target).unwrap();
    symlink(&target, &config.dir).unwrap();
    assert!(failure(&config).contains("is not a directory; remove it"));
    // The user's own choice may be a symbolic link.
    let (fabric, _) = join(FabricConfig { dir_is_ours: false, ..config });
    fabric.leave();
}

#[test]
fn a_directory_without_a_parent_is_named_in_the_error() {
    let place = TestDirectory::new();
    let config = FabricConfig { dir: place.0.join("no/where"), ..place.config() };
    assert_eq!(
        failure(&config),
        format!(
            "{}: cannot be created, as the directory around it does not exist; \
             create that, or set FERROVERBS_FABRIC_DIR",
            config.dir.display()
        )
    );
}

#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    let place = TestDirectory::new();
    let config = place.config();
    fs::create_dir(&config.dir).unwrap();
    for mode in [0o777, 0o720, 0o1777] {
        set_mode(&config.dir, mode);
        assert_eq!(
            failure(&config),
            format!(
                "{}: others may write to it (mode {mode:04o}); chmod 0700 it, \
                 or set FERROVERBS_FABRIC_GROUP to share it with a group",
                config.dir.display()
            )
        );
    }
    set_mode(&config.dir, 0o700);
    fs::create_dir(inner(&config)).unwrap();
    set_mode(&inner(&config), 0o770);
    assert!(failure(&config).contains("others may write to it (mode 0770)"));
}

#[test]
fn a_directory_of_someone_else_is_refused() {
    let place = TestDirectory::new();
    let config = place.config();
    let theirs = if is_root() {
        fs::create_dir(&config.dir).unwrap();
        chown(&config.dir, Some(12345), None).unwrap();
        config
    } else {
        FabricConfig { dir: "/usr".into(), dir_is_ours: false, ..config }
    };
    let line = failure(&theirs);
    let (uid, owner) = (process::user(), if is_root() { 12345 } else { 0 });
    assert_eq!(
        line,
        format!(
            "{}: belongs to user {owner}, and this is user {uid}; set FERROVERBS_FABRIC_DIR to \
             a directory of your own, or FERROVERBS_FABRIC_GROUP to share it with a group",
            theirs.dir.display()
        )
    );
}

#[test]
fn a_directory_without_write_permission_is_named_in_the_error() {
    let place = TestDirectory::new();
    set_mode(&place.0, 0o555);
    let mut child = Child::start();
    if is_root() {
        assert_eq!(child.request("become 54321 54321"), "true");
    }
    let line = child.request(&join_command(&place.config()));
    set_mode(&place.0, 0o755);
    assert_eq!(
        line,
        format!(
            "{}: cannot be created: Permission denied; set FERROVERBS_FABRIC_DIR to a directory \
             that this user may write to",
            place.config().dir.display()
        )
    );
}

#[test]
fn a_lock_file_of_the_wrong_kind_is_an_error_and_does_not_hang() {
    let place = TestDirectory::new();
    let config = place.config();
    fs::create_dir(&config.dir).unwrap();
    fs::create_dir(inner(&config)).unwrap();
    fs::create_dir(inner(&config).join("slots")).unwrap();
    let line = failure(&config);
    assert!(line.contains("/slots: cannot be opened: Is a directory; set"), "{line}");
}

#[test]
fn a_stopped_process_that_locks_the_directory_is_named_in_the_error() {
    let place = TestDirectory::new();
    let config = FabricConfig { join_timeout: Duration::from_millis(50), ..place.config() };
    let (fabric, _) = place.join();
    let slots = fabric.directory().join("slots");
    let mut child = Child::start();
    assert_eq!(child.request(&format!("hold 0 {}", slots.display())), "Ok(true)");
    assert_eq!(
        failure(&config),
        format!(
            "{}: process {} keeps it locked, so that nobody can join; continue or end that process, \
             or set FERROVERBS_FABRIC_DIR to another directory",
            slots.display(),
            child.pid()
        )
    );
    drop(child);
    let (late, _) = join(config);
    assert!(late.peer(fabric.slot()).is_ok());
}

#[test]
fn directories_of_dead_network_namespaces_are_removed_and_others_stay() {
    let place = TestDirectory::new();
    let base = place.config().dir;
    let namespace = |number: u32| base.join(format!("net-{number}"));
    let [dead, empty, full, used] = [1, 2, 3, 4].map(namespace);
    fs::create_dir(&base).unwrap();
    for dir in [&dead, &empty, &full, &used] {
        fs::create_dir(dir).unwrap();
        set_mode(dir, 0o700);
    }
    for file in ["slots", "7.sock", "7.gids"] {
        fs::write(dead.join(file), "12345678").unwrap();
    }
    fs::write(full.join("notes of the user's"), "").unwrap();
    fs::write(used.join("slots"), "12345678").unwrap();
    let mut child = Child::start();
    assert_eq!(child.request(&format!("hold 9 {}", used.join("slots").display())), "Ok(true)");
    set_mode(&base, 0o700);
    let (fabric, _) = place.join();
    assert!(!dead.exists() && !empty.exists());
    assert!(full.exists() && used.join("slots").exists());
    drop(child);
    fabric.leave();
    let (_late, _) = place.join();
    assert!(!used.exists(), "whoever was there is gone");
}

#[test]
fn users_of_a_group_meet_where_the_group_is_set() {
    if !is_root() {
        // Only root can become two other users.
        return;
    }
    const GROUP: u32 = 43210;
    let place = TestDirectory::new();
    open_up(&place.0);
    let config = FabricConfig { group: Some(GROUP), ..place.config() };
    let mut one = Child::start();
    let mut two = Child::start();
    let mut stranger = Child::start();
    assert_eq!(one.request(&format!("become 51001 {GROUP}")), "true");
    assert_eq!(two.request(&format!("become 51002 {GROUP}")), "true");
    assert_eq!(stranger.request("become 51003 51003"), "true");
    // A process outside the group must leave nothing that would keep members out.
    let line = stranger.request(&join_command(&config));
    let expected = format!("user 51003 is no member of group {GROUP}; become one, or unset");
    assert!(line.contains(&expected), "{line}");
    assert!(place.is_clean());
    assert_eq!(one.request(&join_command(&config)), "1");
    assert_eq!(two.request(&join_command(&config)), "2");
    let met = one.request("peer 2");
    // The kernel forbids cross-memory attach between different users.
    assert_eq!(met, format!("pid {} attach false", two.pid()));
    one.request("put 2 5 50");
    assert_eq!(two.request("get 5"), "50");
    assert!(stranger.request(&join_command(&config)).contains("is no member of group"));
    drop(one);
    two.request("deaths 1");
    two.request("leave");
    // The base directory belongs to the first user, who alone may remove it.
    assert!(place.is_clean() || fs::read_dir(&config.dir).unwrap().next().is_none());
}
