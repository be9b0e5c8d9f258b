//! A plugin whose extension table is older and shorter than ours: layers use the members it has.

use abi::{Zeroed, verbs_context_ops};
use core::ffi::c_void;
use std::ffi::CString;
use std::path::Path;
use std::process::Command;

/// A table without its last members, followed by words that must not be taken for members.
const PLUGIN: &str = "
#include <stddef.h>
int asked(void);
int asked(void) { return 1; }
const void *const ferroverbs_plugin_ext_v1[13] = { (const void *) (size_t) 88, [9] = asked, [10] = asked, [11] = asked, [12] = asked };
";

#[test]
fn what_an_older_plugin_has_is_used_and_no_more() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, plugin) = (folder.join("older_plugin.c"), folder.join("older_plugin.so"));
    std::fs::write(&source, PLUGIN).expect("cargo's folder is writable");
    let compiled = Command::new("gcc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .arg(&plugin)
        .arg(&source)
        .status()
        .expect("gcc runs");
    assert!(compiled.success());
    let name = CString::new(plugin.to_str().expect("a name of letters")).expect("no zero in it");
    // SAFETY: a library without constructors, which is never unloaded.
    let asked = unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
        libc::dlsym(library, c"asked".as_ptr())
    };
    assert!(!asked.is_null());
    let mut ops = verbs_context_ops::zeroed();
    // SAFETY: the first entry of a table of pointers; no code calls the entry.
    unsafe { (&raw mut ops).cast::<*mut c_void>().write(asked) };
    // SAFETY: a complete table, whose entries are only looked up.
    let ext = unsafe { layer_tap::plugin::ext_of(&raw const ops) }.expect("its table");
    assert_eq!(ext.tell_packets.map(|f| f as *const c_void), Some(asked.cast_const()));
    assert!(ext.is_wired.is_some() && ext.waiting.is_none() && ext.other_end.is_none());
}
