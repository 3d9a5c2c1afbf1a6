//! Element type of keys and values in messages.

use djinn_types::{DType, KvDtype};

use crate::v1;

impl From<KvDtype> for v1::KvDtype {
    fn from(choice: KvDtype) -> Self {
        match choice {
            KvDtype::Auto => v1::KvDtype::Auto,
            KvDtype::F16 => v1::KvDtype::F16,
            KvDtype::Bf16 => v1::KvDtype::Bf16,
            KvDtype::F32 => v1::KvDtype::F32,
        }
    }
}

impl v1::KvDtype {
    /// Choice of a client; `None` for the server's default.
    pub fn choice(self) -> Option<KvDtype> {
        match self {
            v1::KvDtype::Unspecified => None,
            v1::KvDtype::Auto => Some(KvDtype::Auto),
            v1::KvDtype::F16 => Some(KvDtype::F16),
            v1::KvDtype::Bf16 => Some(KvDtype::Bf16),
            v1::KvDtype::F32 => Some(KvDtype::F32),
        }
    }

    /// Type that an engine computes with.
    pub fn in_use(dtype: DType) -> Self {
        match dtype {
            DType::F16 => v1::KvDtype::F16,
            DType::Bf16 => v1::KvDtype::Bf16,
            DType::F32 => v1::KvDtype::F32,
            DType::I32 => v1::KvDtype::Unspecified,
        }
    }

    /// Name as in flags; empty for [`v1::KvDtype::Unspecified`].
    pub fn name(self) -> String {
        self.choice()
            .map_or(String::new(), |choice| choice.to_string())
    }
}
