//! Images that differ from each other and run the same program.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::PathBuf,
};

use anyhow::Context;
use midflight_agent::image::{ImageName, Layout, Program, pack};
use midflight_plan::storage::engine_image::Ranges;

/// A program, and a copy that is another image each time.
pub(super) struct Variants {
    pub(super) layout: Layout,
    pub(super) program: PathBuf,
    pub(super) copy: PathBuf,
    /// What it said of itself, where that is asked for.
    pub(super) engine: Option<Ranges>,
}

impl Variants {
    /// Publishes an image of this name that no other is like; gives its whole name.
    pub(super) fn publish(&self, name: &str) -> anyhow::Result<String> {
        fs::copy(&self.program, &self.copy).context("copy the program")?;
        // What follows a program is not looked at when it runs.
        let mut file = OpenOptions::new().append(true).open(&self.copy).context("open the copy")?;
        file.write_all(name.as_bytes()).context("mark the copy")?;
        drop(file);
        let image: ImageName = name.parse().context("name an image")?;
        let program = Program { binary: &self.copy, engine: self.engine };
        pack(&self.layout, std::slice::from_ref(&image), program)?;
        Ok(image.to_string())
    }

    /// How large the last one is.
    pub(super) fn bytes(&self) -> u64 {
        fs::metadata(&self.copy).map_or(0, |file| file.len())
    }
}
