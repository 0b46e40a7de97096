//! What measures a resource.

use std::io;
use std::path::{Path, PathBuf};

use heddle_config::snapshot::Resource;
use heddle_worker::Shared;

/// Measures a resource's pressure: the part of it that is used, from 0 on.
pub(crate) type Probe = Box<dyn FnMut() -> io::Result<f64>>;

/// What measures `resource`. `max_connections` is the bound in force on connections of clients, which may be below what is
/// configured where descriptors are short.
pub(crate) fn probe(resource: Resource, shared: Shared, max_connections: u64) -> Probe {
    match resource {
        Resource::FixedHeap { max_bytes } => Box::new(move || {
            let status = std::fs::read_to_string("/proc/self/status")?;
            Ok(anonymous(&status)? as f64 / max_bytes as f64)
        }),
        Resource::CgroupMemory { max_bytes } => Box::new(move || {
            let groups = std::fs::read_to_string("/proc/self/cgroup")?;
            let files = GroupFiles::find(Path::new("/sys/fs/cgroup"), &groups)?;
            files.pressure(max_bytes)
        }),
        Resource::DownstreamConnections { .. } => {
            Box::new(move || Ok(shared.open_connections() as f64 / max_connections.max(1) as f64))
        }
    }
}

/// Anonymous memory that is resident, by `/proc/self/status`.
///
/// That is the heap as the kernel would count it against the process, with thread stacks. The allocator's own figures leave
/// out what it keeps for later; the whole resident set would count the program's pages, which the kernel can drop.
fn anonymous(status: &str) -> io::Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| io::Error::other("/proc/self/status says no RssAnon"))
}

/// The files of a control group that tell its memory.
#[derive(Debug, PartialEq, Eq)]
struct GroupFiles {
    used: PathBuf,
    limit: PathBuf,
}

impl GroupFiles {
    /// Those of this process's group, by `/proc/self/cgroup`: version 2, else version 1. A container may see its own group
    /// as the root of the file system while its path is the host's.
    fn find(root: &Path, groups: &str) -> io::Result<Self> {
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
                continue;
            };
            let (base, used, limit) = match controllers {
                "" => (root.to_owned(), "memory.current", "memory.max"),
                c if c.split(',').any(|c| c == "memory") => {
                    (root.join("memory"), "memory.usage_in_bytes", "memory.limit_in_bytes")
                }
                _ => continue,
            };
            for folder in [base.join(path.trim_start_matches('/')), base] {
                let files = Self {
                    used: folder.join(used),
                    limit: folder.join(limit),
                };
                if files.used.exists() && files.limit.exists() {
                    return Ok(files);
                }
            }
        }
        Err(io::Error::new(
            io::ErrorKind::NotFound,
            "this process is in no control group that counts memory",
        ))
    }

    /// What is used of the group's limit, or of `max` if that is lower. Zero where there is neither.
    fn pressure(&self, max: Option<u64>) -> io::Result<f64> {
        let read = |path: &Path| std::fs::read_to_string(path);
        let number = |text: &str| text.trim().parse::<u64>();
        let used = number(&read(&self.used)?).map_err(io::Error::other)?;
        let limit = match read(&self.limit)?.trim() {
            "max" => None,
            text => Some(number(text).map_err(io::Error::other)?),
        };
        let limit = limit.into_iter().chain(max).min();
        Ok(limit.map_or(0.0, |limit| used as f64 / limit.max(1) as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_is_what_is_anonymous() {
        let status = "VmRSS:\t   9000 kB\nRssAnon:\t   1234 kB\nRssFile:\t 7766 kB\n";
        assert_eq!(anonymous(status).expect("is there"), 1234 * 1024);
        assert!(anonymous("VmRSS:\t 9000 kB\n").is_err());
        let own = std::fs::read_to_string("/proc/self/status").expect("Linux");
        assert!(anonymous(&own).expect("is there") > 64 * 1024);
    }

    #[test]
    fn a_control_groups_limit_or_a_lower_one() {
        let root = std::env::temp_dir().join(format!("heddle-cgroup-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        };
        write("pod/a/memory.current", "500\n");
        write("pod/a/memory.max", "1000\n");
        write("memory/memory.usage_in_bytes", "30\n");
        write("memory/memory.limit_in_bytes", "40\n");
        let found = GroupFiles::find(&root, "1:name=systemd:/x\n0::/pod/a\n").expect("version 2");
        assert_eq!(found.pressure(None).expect("numbers"), 0.5);
        assert_eq!(found.pressure(Some(250)).expect("numbers"), 2.0);
        assert_eq!(found.pressure(Some(5000)).expect("numbers"), 0.5);
        write("pod/a/memory.max", "max\n");
        assert_eq!(found.pressure(None).expect("numbers"), 0.0);
        assert_eq!(found.pressure(Some(250)).expect("numbers"), 2.0);
        // The host's path, inside of a container.
        let first = GroupFiles::find(&root, "4:cpu:/y\n3:memory,hugetlb:/docker/7\n").expect("version 1");
        assert_eq!(first.pressure(None).expect("numbers"), 0.75);
        assert!(GroupFiles::find(&root, "4:cpu:/y\n").is_err());
        std::fs::remove_dir_all(&root).expect("removed");
    }
}
