//! The rule sets as data: what the ready-queue loop and the timelines ask instead of branching on names.

/// How long outputs stay in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Until their last use; outputs nobody consumes, to the end of the step.
    Liveness,
    /// Outputs of forward ops stay to the end of the step, for a backward pass that is not in the graph.
    Training,
}

/// Which candidate of the idle devices is taken first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tie {
    /// The least topological position, then the first device.
    PositionThenDevice,
    /// The first device, then the op that became ready first.
    DeviceThenReady,
}

/// When a ready op may take a device that waits for another op's favorite child (m-SCT).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// When its inputs could be on any device: greatest end of a producer plus transfer (Hanen and Munier).
    Data,
    /// When every device that has room could start it, the devices' own work included (the originals' code).
    Devices,
}

/// What the ready-queue loop needs to know of a rule set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopRules {
    pub tie: Tie,
    pub urgency: Urgency,
    /// Whether the loop misses the end of an op that ends at the moment it is decided (the originals' code): its
    /// children never become ready.
    pub misses_instant_ends: bool,
}

/// Rules under which a graph is placed and simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// What hardware does; see docs/rules.md.
    Physical,
    /// The TensorFlow original: one half-duplex queue per device, free copies, outputs freed early.
    BaechiTf,
    /// The PyTorch original: unlimited channels, copies charged per edge, nothing freed.
    BaechiTorch,
}

impl Rules {
    /// The rule set of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "physical" => Some(Self::Physical),
            "baechi-tf" => Some(Self::BaechiTf),
            "baechi-torch" => Some(Self::BaechiTorch),
            _ => None,
        }
    }

    /// What the ready-queue loop does under these rules.
    #[must_use]
    pub fn for_loop(self) -> LoopRules {
        match self {
            Self::Physical => LoopRules {
                tie: Tie::PositionThenDevice,
                urgency: Urgency::Data,
                misses_instant_ends: false,
            },
            Self::BaechiTf => LoopRules {
                tie: Tie::PositionThenDevice,
                urgency: Urgency::Devices,
                misses_instant_ends: true,
            },
            Self::BaechiTorch => LoopRules {
                tie: Tie::DeviceThenReady,
                urgency: Urgency::Devices,
                misses_instant_ends: true,
            },
        }
    }
}
