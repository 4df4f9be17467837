//! The replicated block engine: replica, engine, frontend and instance manager.
