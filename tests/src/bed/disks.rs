//! The disks of the bed's Nodes: a tmpfs of bounded size for each HostPath, and what can happen to it.
//!
//! A Node's file system root is a folder of the bed; its `/srv/x` is `<folder>/srv/x`. All paths here are the
//! Node's own, absolute ones.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::statvfs;
use nix::unistd::Pid;

use crate::error::{Doing as _, Error, Result};

/// The file by which the product knows a mounted disk from an empty mount point (`behaviour.md`, 13).
pub const MARKER: &str = ".garage-volume-id";
/// The file that `fill` writes.
const FILLER: &str = ".filler";

/// The disks of all Nodes of a bed.
#[derive(Debug)]
pub struct Disks {
    roots: PathBuf,
    sizes: Mutex<BTreeMap<PathBuf, u64>>,
}

impl Disks {
    /// Disks for Nodes whose roots are folders of `roots`.
    pub fn new(roots: &Path) -> Self {
        Self { roots: roots.to_owned(), sizes: Mutex::default() }
    }

    /// A Node's file system root.
    pub fn host_root(&self, node: &str) -> PathBuf {
        self.roots.join(node)
    }

    /// Where a path of a Node is in the bed.
    pub fn path(&self, node: &str, path: &str) -> PathBuf {
        self.host_root(node).join(path.trim_start_matches('/'))
    }

    /// Mounts an empty disk of `size` bytes at a path of a Node.
    pub fn mount(&self, node: &str, path: &str, size: u64) -> Result<()> {
        let at = self.path(node, path);
        fs::create_dir_all(&at).doing(|| format!("making {}", at.display()))?;
        let options = format!("size={size},mode=0755");
        mount(Some("disk"), &at, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .doing(|| format!("mounting a disk at {}", at.display()))?;
        self.sizes.lock().unwrap_or_else(PoisonError::into_inner).insert(at, size);
        Ok(())
    }

    /// Mounts an empty disk and puts the marker on it, as an administrator does before a pool uses it.
    pub fn mount_marked(&self, node: &str, path: &str, size: u64) -> Result<()> {
        self.mount(node, path, size)?;
        self.mark(node, path)
    }

    /// Creates the marker file on a disk.
    pub fn mark(&self, node: &str, path: &str) -> Result<()> {
        let marker = self.path(node, path).join(MARKER);
        fs::write(&marker, format!("{node}{path}\n")).doing(|| format!("writing {}", marker.display()))
    }

    /// Unmounts a disk on the Node, and with it all that is on it; a Pod that runs keeps its own mount (see
    /// [`Self::unmount_in_pod`]) and with it the disk.
    pub fn unmount(&self, node: &str, path: &str) -> Result<()> {
        let at = self.path(node, path);
        umount2(&at, MntFlags::MNT_DETACH).doing(|| format!("unmounting {}", at.display()))
    }

    /// Takes a disk away with all that is on it, until [`Self::plug`] brings it back. Pods that run keep it.
    pub fn unplug(&self, node: &str, path: &str) -> Result<()> {
        let (at, aside) = (self.path(node, path), self.aside(node, path));
        fs::create_dir_all(&aside).doing(|| format!("making {}", aside.display()))?;
        move_mount(&at, &aside)
    }

    /// Brings an unplugged disk back.
    pub fn plug(&self, node: &str, path: &str) -> Result<()> {
        move_mount(&self.aside(node, path), &self.path(node, path))
    }

    fn aside(&self, node: &str, path: &str) -> PathBuf {
        self.roots.join("unplugged").join(node).join(path.trim_start_matches('/'))
    }

    /// Takes a disk away and mounts an empty one of the same size in its place, without the marker.
    pub fn replace(&self, node: &str, path: &str) -> Result<()> {
        let at = self.path(node, path);
        let size = self.sizes.lock().unwrap_or_else(PoisonError::into_inner).get(&at).copied();
        let size = size.ok_or_else(|| Error::other(format!("no disk was mounted at {path} of {node}")))?;
        self.unmount(node, path)?;
        self.mount(node, path, size)
    }

    /// Unmounts a volume under a running container: `path` is the container's own, such as `/data/data`, and
    /// `pid` a process of the container.
    pub fn unmount_in_pod(pid: Pid, path: &str) -> Result<()> {
        let target = pid.to_string();
        // The PID namespace too: the container's /proc has no "self" for anybody else.
        run(Command::new("nsenter").args(["-t", &target, "-m", "-p", "umount", "--lazy", path]))
    }

    /// Takes a volume of a running container away with all that is on it: `path` and `aside` are the container's own.
    /// With the two exchanged it is mounted again.
    pub fn move_in_pod(pid: Pid, path: &str, aside: &str) -> Result<()> {
        let target = pid.to_string();
        let inside =
            |words: &[&str]| run(Command::new("nsenter").args(["-t", &target, "-m", "-p"]).args(words));
        inside(&["mkdir", "-p", aside])?;
        inside(&["mount", "--move", path, aside])
    }

    /// Fills a disk until `leave` bytes are available.
    pub fn fill(&self, node: &str, path: &str, leave: u64) -> Result<()> {
        let at = self.path(node, path);
        let available = available(&at)?;
        let Some(bytes) = available.checked_sub(leave).filter(|bytes| *bytes > 0) else { return Ok(()) };
        let filler = at.join(FILLER);
        let mut file = File::options()
            .create(true)
            .append(true)
            .open(&filler)
            .doing(|| format!("opening {}", filler.display()))?;
        let zeros = vec![0; 1 << 20];
        let mut left = bytes;
        while left > 0 {
            let now = left.min(1 << 20);
            let chunk = zeros.get(..usize::try_from(now).unwrap_or(zeros.len())).unwrap_or(&zeros);
            match file.write(chunk) {
                Ok(0) => break,
                Ok(written) => left = left.saturating_sub(written as u64),
                // Full a page early is full.
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => break,
                Err(error) => return Err(error).doing(|| format!("filling {}", at.display())),
            }
        }
        Ok(())
    }

    /// Undoes [`Self::fill`].
    pub fn free(&self, node: &str, path: &str) -> Result<()> {
        let filler = self.path(node, path).join(FILLER);
        match fs::remove_file(&filler) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).doing(|| format!("removing {}", filler.display()))
            }
            _ => Ok(()),
        }
    }

    /// Bytes available on a disk.
    pub fn available(&self, node: &str, path: &str) -> Result<u64> {
        available(&self.path(node, path))
    }

    /// Makes a disk read-only or writable, for everybody who has it mounted. Fails with "busy" while a file
    /// is open for writing, as on a real disk.
    pub fn read_only(&self, node: &str, path: &str, on: bool) -> Result<()> {
        let at = self.path(node, path);
        let flags = if on { MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY } else { MsFlags::MS_REMOUNT };
        let nothing: Option<&str> = None;
        mount(nothing, &at, nothing, flags, nothing).doing(|| format!("remounting {}", at.display()))
    }

    /// All block files of a data disk (their names are the block hashes), sorted.
    pub fn blocks(&self, node: &str, path: &str) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut folders = vec![self.path(node, path)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).doing(|| format!("listing {}", folder.display()))? {
                let entry = entry.doing(|| format!("listing {}", folder.display()))?;
                let kind = entry.file_type().doing(|| format!("listing {}", folder.display()))?;
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if is_block(&entry.file_name().to_string_lossy()) {
                    found.push(entry.path());
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// Removes one block file.
    pub fn remove_block(block: &Path) -> Result<()> {
        fs::remove_file(block).doing(|| format!("removing {}", block.display()))
    }

    /// Turns over the bits of one byte in the middle of a block file.
    pub fn corrupt_block(block: &Path) -> Result<()> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .open(block)
            .doing(|| format!("opening {}", block.display()))?;
        let middle = file.metadata().doing(|| format!("reading {}", block.display()))?.size() / 2;
        let mut byte = [0];
        let mut turn = || {
            file.seek(SeekFrom::Start(middle))?;
            std::io::Read::read_exact(&mut file, &mut byte)?;
            file.seek(SeekFrom::Start(middle))?;
            file.write_all(&[!byte[0]])
        };
        turn().doing(|| format!("corrupting {}", block.display()))
    }

    /// Removes everything on a disk but the marker: a wiped metadata or data directory.
    pub fn wipe(&self, node: &str, path: &str) -> Result<()> {
        let at = self.path(node, path);
        for entry in fs::read_dir(&at).doing(|| format!("listing {}", at.display()))? {
            let entry = entry.doing(|| format!("listing {}", at.display()))?;
            if entry.file_name() == MARKER {
                continue;
            }
            let path = entry.path();
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.doing(|| format!("removing {}", path.display()))?;
        }
        Ok(())
    }
}

fn move_mount(from: &Path, to: &Path) -> Result<()> {
    let nothing: Option<&str> = None;
    mount(Some(from), to, nothing, MsFlags::MS_MOVE, nothing)
        .doing(|| format!("moving the disk at {} to {}", from.display(), to.display()))
}

/// Garage names a block's file after its hash, 64 hex characters, with `.zst` where it is compressed.
fn is_block(name: &str) -> bool {
    let hash = name.strip_suffix(".zst").unwrap_or(name);
    hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn available(at: &Path) -> Result<u64> {
    let stat = statvfs(at).doing(|| format!("asking for the room at {}", at.display()))?;
    Ok(stat.blocks_available() * stat.fragment_size())
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Result<()> {
    let output =
        command.output().doing(|| format!("starting {}", command.get_program().to_string_lossy()))?;
    if output.status.success() {
        return Ok(());
    }
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    Err(Error::Command {
        command: words.join(" "),
        status: output.status.to_string(),
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn block_files_are_told_by_their_hash() {
        assert!(is_block(&"0f".repeat(32)));
        assert!(is_block(&format!("{}.zst", "0f".repeat(32))));
        assert!(!is_block(MARKER));
        assert!(!is_block("garage-marker"));
        assert!(!is_block(&format!("{}.tmp", "0f".repeat(32))));
    }

    #[test]
    fn a_corrupted_block_differs_in_one_byte_and_keeps_its_length() {
        let folder = tempfile::tempdir().unwrap();
        let block = folder.path().join("0f".repeat(32));
        fs::write(&block, [7; 9]).unwrap();
        Disks::corrupt_block(&block).unwrap();
        assert_eq!(fs::read(&block).unwrap(), [7, 7, 7, 7, !7, 7, 7, 7, 7]);
    }

    #[test]
    fn a_wipe_leaves_only_the_marker() {
        let folder = tempfile::tempdir().unwrap();
        let disks = Disks::new(folder.path());
        let disk = disks.path("kn-1", "/srv/data");
        fs::create_dir_all(disk.join("ab/cd")).unwrap();
        disks.mark("kn-1", "/srv/data").unwrap();
        fs::write(disk.join("ab/cd").join("0f".repeat(32)), "x").unwrap();
        assert_eq!(disks.blocks("kn-1", "/srv/data").unwrap().len(), 1);
        disks.wipe("kn-1", "/srv/data").unwrap();
        let left: Vec<_> = fs::read_dir(&disk).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [MARKER]);
    }
}
