//! Storage controllers: the shells around `plan::storage`.

mod engine_image;
#[cfg(test)]
mod tests;

pub(crate) use engine_image::EngineImages;
