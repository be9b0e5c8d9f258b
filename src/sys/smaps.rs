//! The page size of a mapping, from `/proc/self/smaps` (`proc(5)`). The support for fork
//! (`front::fork`) asks for it when the application uses huge pages.

use std::io::BufRead;

use cface::mem;

/// Bytes of a page in the mapping that contains `address`; the system's page size when unknown.
pub(crate) fn page_size_at(address: usize) -> usize {
    std::fs::File::open("/proc/self/smaps")
        .ok()
        .and_then(|file| find_page_size(std::io::BufReader::new(file), address))
        .filter(|size| size.is_power_of_two())
        .unwrap_or_else(mem::page_size)
}

/// Looks for `KernelPageSize` of the mapping around `address`.
pub(crate) fn find_page_size(smaps: impl BufRead, address: usize) -> Option<usize> {
    let mut inside = false;
    for line in smaps.lines().map_while(Result::ok) {
        if let Some(range) = range_of(&line) {
            inside = range.contains(&address);
        } else if let Some(size) = line.strip_prefix("KernelPageSize:").filter(|_| inside) {
            let kilobytes: usize = size.trim().strip_suffix("kB")?.trim().parse().ok()?;
            return kilobytes.checked_mul(1024);
        }
    }
    None
}

/// `start-end perms …` of a mapping's first line.
fn range_of(line: &str) -> Option<std::ops::Range<usize>> {
    let (start, rest) = line.split_once('-')?;
    let (end, _) = rest.split_once(' ')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_is_that_of_the_mapping_around_the_address() {
        let smaps = "1000-3000 rw-p 00000000 00:00 0\nSize: 8 kB\nKernelPageSize:        4 kB\n\
                     200000-400000 rw-p 00000000 00:0f 1 /anon_hugepage (deleted)\nKernelPageSize:     2048 kB\n";
        assert_eq!(find_page_size(smaps.as_bytes(), 0x1fff), Some(4096));
        assert_eq!(find_page_size(smaps.as_bytes(), 0x20_0000), Some(2 * 1024 * 1024));
        assert_eq!(find_page_size(smaps.as_bytes(), 0x3000), None);
    }

    #[test]
    fn a_page_of_this_process_has_the_systems_size() {
        let here = 0_u8;
        assert_eq!(page_size_at((&raw const here).addr()), mem::page_size());
    }
}
