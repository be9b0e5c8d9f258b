//! An RPM with what the package `ferroverbs` has: a tree in `/usr/lib/ferroverbs` and the command.
//! rpmbuild(8) finds the required versions of the C library.

use super::{Dist, VERSION, make_folder, write};
use crate::files::below;
use std::path::{Path, PathBuf};

/// The release of the package.
const RELEASE: &str = "1";

impl Dist<'_> {
    /// Writes `ferroverbs-VERSION-1.ARCH.rpm` into `out`.
    pub(super) fn rpm(&self, out: &Path) -> crate::Result<PathBuf> {
        let top = self.scratch.folder("rpm", 0o755)?;
        let root = top.join("root");
        make_folder(&root)?;
        self.beside(&root)?;
        // The folder of Debian's zsh has another name here.
        let (from, to) =
            (root.join("usr/share/zsh/vendor-completions"), "usr/share/zsh/site-functions");
        std::fs::rename(&from, root.join(to)).map_err(|e| format!("{}: {e}", from.display()))?;
        let licences = root.join("usr/share/licenses/ferroverbs");
        for text in ["LICENSE-MIT", "LICENSE-APACHE"] {
            super::copy(&self.paths.root.join(text), &licences.join(text))?;
        }
        self.age(&root)?;
        let mut list = String::new();
        for file in below(&root)? {
            let inner = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
            list.push_str(&format!("\"/{inner}\"\n"));
        }
        let arch = self.architecture.name();
        let spec = top.join("ferroverbs.spec");
        write(&spec, &spec_of(&root, &list))?;
        let name = format!("ferroverbs-{VERSION}-{RELEASE}.{arch}.rpm");
        let define = |text: String| ["--define".to_owned(), text];
        let job = self
            .job("rpmbuild")
            .args(["-bb", "--quiet", "--target", &format!("{arch}-linux")])
            .args(define(format!("_topdir {}", top.display())))
            .args(define(format!("_rpmdir {}", out.display())))
            .args(define("_build_name_fmt %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm".into()))
            .args(define("_buildhost ferroverbs".into()))
            .args(define("use_source_date_epoch_as_buildtime 1".into()))
            .args(define("clamp_mtime_to_source_date_epoch 1".into()))
            .args(define("source_date_epoch_from_changelog 0".into()))
            .args(define("_build_id_links none".into()))
            .args(define("_binary_payload w9.xzdio".into()))
            .args(define("debug_package %{nil}".into()))
            .args(define("__os_install_post %{nil}".into()))
            // The library is not for the programs of the machine: nothing may depend on it.
            .args(define("__provides_exclude_from ^/usr/lib/ferroverbs/.*$".into()))
            .arg(&spec)
            .dir(&top);
        self.ask(job)?;
        Ok(out.join(name))
    }
}

fn spec_of(root: &Path, files: &str) -> String {
    format!(
        "Name: ferroverbs\n\
         Version: {VERSION}\n\
         Release: {RELEASE}\n\
         Summary: RDMA verbs library with a software adapter, beside the system's\n\
         License: MIT OR Apache-2.0\n\
         # The own libraries are in a folder of their own.\n\
         %global __requires_exclude ^lib(ibverbs|rdmacm|ferroverbs-inlines)\\\\.so\n\
         %description\n\
         Ferroverbs is libibverbs rebuilt in Rust, together with \"soft\", an RDMA adapter in\n\
         software that needs no hardware, no kernel module and no root. This package lives in\n\
         a directory of its own and changes nothing for other programs: the command\n\
         \"ferroverbs\" puts it under one program at a time.\n\
         %install\n\
         mkdir -p %{{buildroot}}\n\
         cp -a {}/. %{{buildroot}}\n\
         %files\n\
         %defattr(-,root,root,-)\n\
         {files}",
        root.display()
    )
}
