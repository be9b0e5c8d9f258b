//! The built `libibverbs.so` has every name that a release of rdma-core from 44 to 65 exports,
//! under the same version node.

use std::ffi::CString;
use std::path::PathBuf;

/// The shared library that cargo built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a running test");
    let deps = test.parent().expect("a directory");
    let beside =
        |folder: Option<&std::path::Path>| folder.map(|folder| folder.join("libibverbs.so"));
    [beside(deps.parent()), beside(Some(deps))]
        .into_iter()
        .flatten()
        .find(|file| file.exists())
        .expect("cargo builds the library for its integration tests")
}

#[test]
fn every_versioned_name_of_every_release_is_there() {
    let file = CString::new(library().into_os_string().into_encoded_bytes()).expect("no NUL");
    // SAFETY: the project's own library, whose constructors do nothing.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!handle.is_null(), "{file:?} does not load");
    let mut missing = Vec::new();
    let mut checked = 0;
    for line in include_str!("../c-tests/data/exported-symbols.tsv").lines().skip(1) {
        let (name, version) = line.split_once('\t').expect("two columns");
        let c = |text| CString::new(text).expect("no NUL");
        // SAFETY: a live handle and two C strings.
        let found = unsafe { libc::dlvsym(handle, c(name).as_ptr(), c(version).as_ptr()) };
        if found.is_null() {
            missing.push(line);
        }
        checked += 1;
    }
    assert!(missing.is_empty(), "missing: {missing:#?}");
    assert!(checked > 400, "only {checked} names in the list");
    // SAFETY: a live handle and two C strings.
    let nonsense =
        unsafe { libc::dlvsym(handle, c"ibv_create_qp".as_ptr(), c"IBVERBS_1.18".as_ptr()) };
    assert!(nonsense.is_null(), "a name must not appear under another node");
}
