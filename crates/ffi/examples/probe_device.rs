//! A plugin for the tests: a device whose methods panic.

use keyfold_plugin::{
    Backend, Content, DeviceTensor, Execution, Groups, Operation, Registrar, Result,
};

keyfold_plugin::plugin!(register, needs = devices);

fn register(host: &mut Registrar<'_>) -> Result<()> {
    host.device("probe", Probe)
}

struct Probe;

struct Memory;

impl Drop for Memory {
    fn drop(&mut self) {
        // A payload of no size: it is leaked, which a sanitizer would report.
        std::panic::panic_any(());
    }
}

impl Backend for Probe {
    type Buffer = Memory;
    type Event = ();

    fn groups(&self) -> Groups {
        Groups::ROWS
    }

    fn allocate(&self, _: u32, bytes: usize, _: Content) -> Result<Memory> {
        assert!(bytes != 13, "unlucky");
        Ok(Memory)
    }

    fn upload(&self, _: &[u8], _: &DeviceTensor<'_, Memory>, _: u32) -> Result<()> {
        Ok(())
    }

    fn download(&self, _: &DeviceTensor<'_, Memory>, _: &mut [u8], _: u32) -> Result<()> {
        Ok(())
    }

    fn copy(
        &self,
        _: &DeviceTensor<'_, Memory>,
        _: &DeviceTensor<'_, Memory>,
        _: u32,
    ) -> Result<()> {
        Ok(())
    }

    fn fill(&self, _: &DeviceTensor<'_, Memory>, _: &[u8], _: u32) -> Result<()> {
        Ok(())
    }

    fn synchronize(&self, _: u32) -> Result<()> {
        Ok(())
    }

    fn support(&self, operation: &Operation<'_>) -> Result<()> {
        assert!(operation.name() == "softmax", "asked");
        Ok(())
    }

    fn execute(&self, _: &Execution<'_, Memory>) -> Result<()> {
        panic!("called");
    }
}
