//! A folder that apt(8) takes for a repository: the packages, `Packages` and `Release`, without a
//! signature. A line such as `deb [trusted=yes] file:/DIR ./` in a list of sources names it.

use super::{Dist, make_folder, write};
use std::fs;
use std::path::{Path, PathBuf};

impl Dist<'_> {
    /// Makes `apt` in `out`, and returns its `Release`, which has the checksum of `Packages`, which
    /// has those of the packages.
    pub(super) fn repository(&self, debs: &[PathBuf], out: &Path) -> crate::Result<PathBuf> {
        let folder = out.join("apt");
        make_folder(&folder)?;
        let mut list = String::new();
        for deb in debs {
            let name = deb.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let copy = folder.join(&name);
            let fail = |e: std::io::Error| format!("cannot copy {}: {e}", deb.display());
            fs::hard_link(deb, &copy).or_else(|_| fs::copy(deb, &copy).map(drop)).map_err(fail)?;
            let fields = self.ask(self.job("dpkg-deb").arg("-f").arg(deb))?;
            list.push_str(fields.trim_end());
            list.push_str(&format!("\nFilename: ./{name}\n"));
            list.push_str(&self.size_and_sum(deb)?);
            list.push('\n');
        }
        let packages = folder.join("Packages");
        write(&packages, &list)?;
        let (size, sum) = self.facts(&packages)?;
        let date = ["-u", "-d", &format!("@{}", self.time), "+%a, %d %b %Y %H:%M:%S UTC"];
        let date = self.ask(self.job("date").args(date))?;
        let text = format!(
            "Origin: Ferroverbs\nLabel: Ferroverbs\nSuite: stable\nArchitectures: {} all\nDate: {}\n\
             Description: Packages of Ferroverbs\nSHA256:\n {sum} {size} Packages\n",
            self.arch,
            date.trim()
        );
        let release = folder.join("Release");
        write(&release, &text)?;
        Ok(release)
    }

    fn size_and_sum(&self, file: &Path) -> crate::Result<String> {
        let (size, sum) = self.facts(file)?;
        Ok(format!("Size: {size}\nSHA256: {sum}\n"))
    }

    /// Length in bytes, and SHA-256.
    fn facts(&self, file: &Path) -> crate::Result<(u64, String)> {
        let fail = |e: std::io::Error| format!("{}: {e}", file.display());
        let size = fs::metadata(file).map_err(fail)?.len();
        Ok((size, self.sum("sha256sum", file)?))
    }
}
