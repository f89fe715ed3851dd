"""People in the browser: studies in which raters score, choose and chat, over the project's own records.

Needs the extra `people`; only functions of `evalsuite.people.commands.people` import it.
"""
