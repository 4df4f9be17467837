//! The nouns of Midflight: resources, states, ids and wire messages. No I/O.
