//! What an image name means in a bed: no image is ever pulled, a table says which binary stands where.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a container made from an image starts with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Files of the image: where they are in the bed, and where in the container's root (absolute).
    pub files: Vec<(PathBuf, String)>,
    /// The image's `ENTRYPOINT`; a container's `command` replaces it and `cmd`.
    pub entrypoint: Vec<String>,
    /// The image's `CMD`; a container's `args` replace it.
    pub cmd: Vec<String>,
    /// The image's `ENV`.
    pub env: Vec<(String, String)>,
    /// The image's `WORKDIR`; `/` where empty.
    pub working_dir: String,
    /// The image's numeric `USER`; root where absent.
    pub user: Option<i64>,
}

impl Image {
    /// An image that holds one program at a path, which is also its entrypoint.
    pub fn program(binary: impl Into<PathBuf>, at: &str) -> Self {
        Self {
            files: vec![(binary.into(), at.to_owned())],
            entrypoint: vec![at.to_owned()],
            ..Self::default()
        }
    }

    /// Garage as its own image has it: the binary at `/garage`, no entrypoint, `/garage server` as command.
    pub fn garage(binary: impl Into<PathBuf>) -> Self {
        Self {
            files: vec![(binary.into(), "/garage".to_owned())],
            cmd: vec!["/garage".to_owned(), "server".to_owned()],
            ..Self::default()
        }
    }
}

/// The images that exist. Any other name ends as a failed pull does (`ErrImagePull`, `ImagePullBackOff`).
#[derive(Debug, Clone, Default)]
pub struct ImageTable(BTreeMap<String, Image>);

impl ImageTable {
    /// Adds an image under a name as it would stand in a Pod (`dxflrs/garage:v2.5.0`).
    #[must_use]
    pub fn with(mut self, name: &str, image: Image) -> Self {
        self.0.insert(normalize(name), image);
        self
    }

    /// Finds an image by any spelling of its name (`docker.io/` and `:latest` may be left out).
    pub fn get(&self, name: &str) -> Option<&Image> {
        self.0.get(&normalize(name))
    }
}

/// The full name, as every container runtime completes it.
fn normalize(name: &str) -> String {
    let (path, reference) = match name.split_once('@') {
        Some((path, digest)) => (path, format!("@{digest}")),
        None => match name.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, format!(":{tag}")),
            _ => (name, ":latest".to_owned()),
        },
    };
    let path = match path.split_once('/') {
        None => format!("docker.io/library/{path}"),
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => path.to_owned(),
        Some(_) => format!("docker.io/{path}"),
    };
    path + &reference
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_by_any_spelling_of_its_name() {
        let table = ImageTable::default().with("dxflrs/garage:v2.5.0", Image::garage("/bin/true"));
        assert!(table.get("docker.io/dxflrs/garage:v2.5.0").is_some());
        assert!(table.get("dxflrs/garage:v2.0.0").is_none());
        assert!(table.get("dxflrs/garage").is_none());
    }

    #[test]
    fn names_are_completed_as_a_runtime_does() {
        assert_eq!(normalize("busybox"), "docker.io/library/busybox:latest");
        assert_eq!(normalize("localhost:5000/a"), "localhost:5000/a:latest");
        assert_eq!(normalize("ghcr.io/x/y@sha256:ab"), "ghcr.io/x/y@sha256:ab");
    }
}
