//! The pages of the program and of its libraries.

use std::ffi::c_void;
use std::io;
use std::ops::Range;

/// Takes the code and the constants of the program and of its libraries out of this process's resident memory. What is used
/// comes back page by page from the system's cache; what only the start or the reading of a configuration needed does not, and
/// the system may use its memory for something else. To be called after such work, by a thread that serves nobody; costs some
/// hundred page faults later.
///
/// # Errors
///
/// When `/proc/self/smaps` cannot be read; then nothing has been done.
pub fn give_back_program() -> io::Result<()> {
    for range in unchanged(&std::fs::read_to_string("/proc/self/smaps")?) {
        // SAFETY: the range is a private mapping of a file whose pages are all the file's own, so reading them again gives the
        // same. No thread writes to it or unmaps it: it is not writable, and belongs to what the loader has loaded.
        let done = unsafe { libc::madvise(range.start as *mut c_void, range.len(), libc::MADV_DONTNEED) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// One mapping of `/proc/self/smaps` (proc_pid_smaps(5)).
struct Mapping<'a> {
    range: Range<usize>,
    access: &'a str,
    file: &'a str,
    /// Pages that are no longer the file's: relocated, or with a breakpoint or probe in them.
    anonymous: bool,
}

/// Where the program's and its libraries' code is, and the constants in front of it, as long as nobody has changed them.
fn unchanged(smaps: &str) -> Vec<Range<usize>> {
    let mut mappings: Vec<Mapping<'_>> = Vec::new();
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Anonymous:") {
            if let Some(last) = mappings.last_mut() {
                last.anonymous = kib.trim() != "0 kB";
            }
        } else if let Some(mapping) = head(line) {
            mappings.push(mapping);
        }
    }
    let is_code = |m: &Mapping<'_>| m.access == "r-xp" && m.file.starts_with('/');
    let belongs = |(i, m): (usize, &Mapping<'_>)| {
        is_code(m)
            || m.access == "r--p"
                && mappings
                    .get(i + 1)
                    .is_some_and(|next| is_code(next) && next.file == m.file && next.range.start == m.range.end)
    };
    let found = mappings
        .iter()
        .enumerate()
        .filter(|&(i, m)| belongs((i, m)) && !m.anonymous);
    found.map(|(_, m)| m.range.clone()).collect()
}

/// The first line of a mapping: range, access, offset, device, inode, file.
fn head(line: &str) -> Option<Mapping<'_>> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let at = |hex| usize::from_str_radix(hex, 16).ok();
    Some(Mapping {
        range: at(start)?..at(end)?,
        access: rest.split(' ').next()?,
        file: rest.splitn(5, ' ').nth(4)?.trim_start(),
        // Until the line that says so has been read.
        anonymous: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
1000-3000 r--p 00000000 fe:00 42                         /bin/the program
Rss:                   8 kB
Anonymous:             0 kB
3000-7000 r-xp 00002000 fe:00 42                         /bin/the program
Anonymous:             0 kB
7000-8000 r--p 00006000 fe:00 42                         /bin/the program
Anonymous:             4 kB
8000-9000 rw-p 00007000 fe:00 42                         /bin/the program
Anonymous:             0 kB
a000-b000 rw-p 00000000 00:00 0 \nAnonymous:             0 kB
b000-c000 r--p 00000000 fe:00 43                         /etc/data
Anonymous:             0 kB
c000-d000 r--p 00000000 fe:00 44                         /lib/with-a-probe.so
Anonymous:             0 kB
d000-e000 r-xp 00001000 fe:00 44                         /lib/with-a-probe.so
Anonymous:             4 kB
f000-f800 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
";

    #[test]
    fn only_what_is_as_in_its_file_is_given_back() {
        assert_eq!(unchanged(SMAPS), [0x1000..0x3000, 0x3000..0x7000, 0xc000..0xd000]);
    }

    #[test]
    fn the_program_runs_on_and_is_smaller() {
        let files = || {
            let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:"));
            let number = line.and_then(|line| line.split_whitespace().next()).expect("RssFile");
            number.parse::<u64>().expect("a number")
        };
        // Whatever the tests beside this one have touched: all of the program's code.
        for range in unchanged(&std::fs::read_to_string("/proc/self/smaps").expect("/proc")) {
            // SAFETY: the advice has no conditions.
            unsafe { libc::madvise(range.start as *mut c_void, range.len(), libc::MADV_POPULATE_READ) };
        }
        let before = files();
        give_back_program().expect("/proc");
        let after = files();
        assert!(after < before, "{after} KiB of {before}");
    }
}
