//! CUDA kernels. The sources are compiled ahead by `build-ptx` and kept as PTX, text
//! that the driver compiles for its own card: building Djinn needs no CUDA, and running
//! it needs a driver alone.

#![forbid(unsafe_code)]

/// Some of the kernels, as text.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// The source's name.
    pub name: &'static str,
    /// The least compute capability it runs on, times ten. Of two with one name a card
    /// takes the later that it can run.
    pub capability: u32,
    /// What the driver compiles.
    pub ptx: &'static str,
}

macro_rules! rooms {
    ($($name:literal for $capability:literal),* $(,)?) => {
        [$(Room {
            name: $name,
            capability: $capability,
            ptx: include_str!(concat!("ptx/", $name, ".sm", $capability, ".ptx")),
        }),*]
    };
}

/// Every kernel.
pub const ROOMS: [Room; 17] = rooms![
    "attention_many" for 80,
    "attention_one" for 80,
    "attention_simple" for 80,
    "edit" for 80,
    "elementwise" for 80,
    "lookup" for 80,
    "position" for 80,
    "product_few" for 80,
    "product_simple" for 80,
    "reduce" for 80,
    "sample" for 80,
    "attention_one" for 90,
    "elementwise" for 90,
    "lookup" for 90,
    "position" for 90,
    "product_few" for 90,
    "sample" for 90,
];

impl Room {
    /// The names of its kernels.
    pub fn kernels(&self) -> impl Iterator<Item = &'static str> {
        let entries = self
            .ptx
            .lines()
            .filter_map(|line| line.split_once(".entry "));
        entries.map(|(_, name)| name.trim_end_matches('('))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sha2::{Digest, Sha256};

    use super::{ROOMS, Room};

    fn source(name: &str) -> Vec<u8> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(name);
        std::fs::read(path).unwrap()
    }

    #[test]
    fn the_text_is_of_these_sources() {
        for room in ROOMS {
            let room_source = format!("{}.cu", room.name);
            let sources = [&room_source, "activation.cuh", "common.cuh", "tensor.cuh"];
            let digest = Sha256::digest(sources.map(source).concat());
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            let first = room.ptx.lines().next();
            let expect = format!("// source {hex}");
            assert_eq!(first, Some(expect.as_str()), "run crates/kernels/build-ptx");
        }
    }

    #[test]
    fn kernels_have_names_of_their_own() {
        for capability in [80, 90] {
            let rooms = ROOMS.iter().filter(|room| room.capability == capability);
            let mut names: Vec<&str> = rooms.flat_map(Room::kernels).collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count);
            assert!(names.contains(&"few_f16_16_8"), "{names:?}");
        }
    }
}
