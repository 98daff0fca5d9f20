//! What a site's Garage processes say in their logs of repairs: what they were made to do, whoever asked.

use crate::bed::Bed;
use crate::error::{Doing as _, Result};
use crate::site::Site;

/// What Garage 2.x says when a repair begins, and when it drops a block.
const TABLES: &str = "Launching a full sync of tables";
const BLOCKS: &str = "Repairing the stored blocks";
const DELETION: &str = "Deleting unneeded block";

/// Repairs that were begun.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Launches {
    /// `tables`
    pub tables: usize,
    /// `blocks`
    pub blocks: usize,
}

impl Site {
    /// The repairs that were begun on this site until now.
    pub fn launches(&self, bed: &Bed) -> Result<Launches> {
        let mut launches = Launches::default();
        for (_, said) in self.garage_logs(bed)? {
            launches.tables += said.matches(TABLES).count();
            launches.blocks += said.matches(BLOCKS).count();
        }
        Ok(launches)
    }

    /// The first line that tells of a block that was deleted because nothing refers to it.
    pub fn deleted_block(&self, bed: &Bed) -> Result<Option<String>> {
        let logs = self.garage_logs(bed)?;
        Ok(logs.iter().find_map(|(name, said)| {
            let line = said.lines().find(|line| line.contains(DELETION))?;
            Some(format!("{name}: {line}"))
        }))
    }

    fn garage_logs(&self, bed: &Bed) -> Result<Vec<(String, String)>> {
        let folder = bed.logs.join("pods");
        let doing = || format!("reading the logs in {}", folder.display());
        let mut logs = Vec::new();
        for log in std::fs::read_dir(&folder).doing(doing)? {
            let path = log.doing(doing)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with(&format!("{}_", self.namespace)) && name.contains("_garage.") {
                logs.push((name, std::fs::read_to_string(&path).doing(doing)?));
            }
        }
        Ok(logs)
    }
}
