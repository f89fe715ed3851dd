"""Studies in the browser (extra `people`, which only functions of `evalsuite.people.commands.people` import)."""
