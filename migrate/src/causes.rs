//! Errors for people: what was being done, and everything that led to it, in one line.

use std::error::Error;

/// An error with its causes, each once.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text += &format!(": {words}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{what}")]
    struct Step {
        what: &'static str,
        source: Option<Box<Step>>,
    }

    #[test]
    fn says_every_cause_once() {
        let deepest = Step { what: "no space", source: None };
        let again = Step { what: "write the file: no space", source: Some(Box::new(deepest)) };
        let error = Step { what: "make the backup", source: Some(Box::new(again)) };
        assert_eq!(with_causes(&error), "make the backup: write the file: no space");
    }
}
