//! Names and other short texts, each with a type and a greatest length.
//!
//! The invariant: no two names of different things can be mistaken for one
//! another, and none is unbounded in a schema.

use crate::wire::text;

text!(
    /// Name of a node, the same in Kubernetes, Longhorn and Midflight.
    NodeName, max = 253
);
text!(
    /// Name of a volume.
    VolumeName, max = 253
);
text!(
    /// Name of an Engine object, and of the process or instance behind it.
    EngineName, max = 253
);
text!(
    /// Name of a Replica object, and of the process or instance behind it.
    ReplicaName, max = 253
);
text!(
    /// Name of an InstanceManager object and its pod.
    InstanceManagerName, max = 253
);
text!(
    /// Name of another object.
    ObjectName, max = 253
);
text!(
    /// Reference of an OCI image, such as `midflight.local/engine:v1`.
    ImageRef, max = 512
);
/// What the reference of an image looks like.
pub(crate) const IMAGE: &str = "^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}$";
text!(
    /// Moment in RFC 3339, empty if there was none yet.
    Timestamp, max = 64
);
text!(
    /// Network address of an instance, `HOST:PORT` or `HOST`.
    Address, max = 256
);
text!(
    /// Path on a node, or the address of a store.
    Location, max = 4096
);
text!(
    /// Word without spaces that a program matches on.
    Word, max = 256
);
text!(
    /// Sentence for a person.
    Message, max = 4096
);
text!(
    /// Identifier that is chosen once and compared, never read.
    Id, max = 64
);
